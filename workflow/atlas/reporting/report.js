// Sorting and filtering; without scripts the tables stand as they are.
for (const table of document.querySelectorAll("table:not(.chart)")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  if (body.rows.length < 2) continue;
  table.classList.add("sortable");
  const key = (row, column) => {
    const cell = row.cells[column], value = cell.dataset.sort ?? cell.textContent;
    const number = value === "-inf" ? -Infinity : Number(value);
    return Number.isNaN(number) ? value : number;
  };
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => {
        const x = key(a, column), y = key(b, column);
        const order = typeof x === "number" && typeof y === "number" ? x - y || 0 : String(x).localeCompare(String(y), "en", {numeric: true});
        return down ? -order : order;
      });
      body.append(...rows);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault(); // a space would scroll
      sort();
    });
  });
  if (body.rows.length < 9) continue;
  const filter = document.createElement("input");
  filter.className = "filter";
  filter.type = "search";
  filter.placeholder = `Filter ${body.rows.length} rows: all words`;
  filter.setAttribute("aria-label", "Filter rows");
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    for (const row of body.rows) row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
    nothing.hidden = [...body.rows].some(row => !row.hidden);
    nothing.textContent = `No row has ${words.map(word => `“${word}”`).join(" and ")}.`;
  });
  const nothing = document.createElement("p");
  nothing.className = "nothing";
  nothing.hidden = true;
  nothing.setAttribute("role", "status");
  table.parentElement.before(filter, nothing);
}
// The chart beside another GPU lies in a template until it is wanted.
const beside = document.getElementById("beside");
if (beside) {
  const first = document.querySelector("[data-chart]");
  const charts = [first, ...[...document.querySelectorAll("#s-kernels > template")].map(one => one.content.firstElementChild)];
  beside.addEventListener("change", () => document.querySelector("[data-chart]").replaceWith(charts[beside.value]));
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(part => { part.open = true; }));
