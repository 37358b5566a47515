"""What the run amounts to: the alarm, the verdicts, losses beside wins, and what failed and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from ..results.changes import by_kernel, sentence
from ..results.collection import Entry
from ..results.summary import KIND_WORDS, STALE, counted, failure, in_short, listed, microseconds, rate
from ..results.verdict import KINDS, PERFORMANCE, SEVERITY
from .grid import Cell, Grid, badge, config_words, is_true, missing, number, origin, text

Tables = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Alarm:
    """One sentence of the top of the page: how bad (``bad``, ``warn``, ``good``), a headline, the words."""

    level: str
    headline: str
    words: str


def alarms(tables: Tables) -> list[Alarm]:
    """What must be read first: wrong kernels by name, then failed and suspect ones, else that all is well."""
    verdicts = tables["verdicts"]
    found = []
    for status, level in (("wrong", "bad"), ("failed", "bad"), ("suspect", "warn")):
        for row in verdicts[verdicts.status == status].itertuples():
            record = "" if row.failing else " (a record; it does not fail this run)"
            found.append(Alarm(level, failure(status, row.kernel, row.gpu), f"{row.reason}{record}"))
    ran = verdicts[verdicts.kind.isin([*PERFORMANCE, "functional"])]
    if not found and len(ran):
        found.append(Alarm("good", "No kernel is wrong", f"on {listed(sorted(ran.gpu.unique()))}, where they ran."))
    elif not found:
        found.append(Alarm("warn", "Nothing has run", "Kernels were compiled at most; no result was checked."))
    for (kernel, gpu), rows in by_kernel(tables["changes"].to_dict("records")).items():
        if any(row["verdict"] == "slower" for row in rows):
            found.append(Alarm("warn", f"Slower than its record: {kernel} on {gpu}", sentence(kernel, gpu, rows)))
    stale = verdicts[verdicts.stale.fillna(False)]
    if len(stale):
        where = [f"{listed(sorted(own))} on {gpu}" for gpu, own in stale.groupby("gpu").kernel]
        found.append(Alarm("warn", "Stale", f"{'; '.join(where)}: {STALE}."))
    return found


def summary(tables: Tables) -> str:
    """The figures of a run in two sentences."""
    verdicts, cases = tables["verdicts"], compared(tables)
    ran = set(verdicts[verdicts.kind.isin(KINDS[:-1])].gpu)
    every = verdicts.kernel.nunique()
    where = []
    for kind in KINDS:
        own = verdicts[(verdicts.kind == kind) & ~((kind == "compiled") & verdicts.gpu.isin(ran))]
        counts = own.groupby("gpu").kernel.nunique()
        names = [gpu if n == every or kind == "compiled" else f"{gpu} ({n} of them)" for gpu, n in counts.items()]
        where += [f"{listed(names)} {KIND_WORDS[kind]}"] if names else []
    first = counted(every, "kernel") + (": " + "; ".join(where) if where else "") + "."
    if cases.empty:
        return f"{first} No case was timed against a peer on a GPU."
    weak = cases.weak.fillna("") != ""
    outcomes = cases[~weak].outcome.value_counts()
    names = {"faster": "faster than the fastest peer", "same": "the same", "undecided": "undecided", "slower": "slower"}
    parts = [f"{outcomes.get(name, 0)} {words}" for name, words in names.items()]
    left_out = f", without {weak.sum()} of weak peers" if weak.any() else ""
    return f"{first} Of {counted(int((~weak).sum()), 'timed case')}{left_out}: {', '.join(parts)}."


def verdict_table(tables: Tables, place: str = "") -> Grid:
    """Kernel by GPU: status, kind, best config, figure, against the fastest peer, share of the roof, memory, cost.

    ``place`` is where the kernels' pages are, with a slash at its end.
    """
    table, more = tables["verdicts"], _More(tables)
    strength = {kind: place for place, kind in enumerate(KINDS)}
    there = table[table.status != "none"]
    table = there[~_only_compiled(there)]
    ordered = sorted(table.itertuples(), key=lambda row: (row.kernel, strength.get(row.kind, len(strength)), row.gpu))
    return Grid(
        "verdicts",
        ("kernel", "GPU", "status", "kind", "headline case", "best config", "figure", "% of roof",
         "against the fastest peer", "all cases", "worst case", "memory", "host time", *more.columns),
        [[*_verdict_row(row, place), *more.cells(row)] for row in ordered],
        empty="There is no document of any kernel: run `snakemake` first." if there.empty else
        "Nothing has run; what was compiled is under Build.",
        caption="Memory: what a call adds at its peak, outputs included. Host time: of a call, median over the cases "
        "short enough to be bound by it. Weak: beside weak peers alone, and in no mean." + more.caption,
        numeric=frozenset(range(6, 13 + len(more.columns))),
    )  # fmt: skip


class _More:
    """What the verdicts leave to other tables: memory, host time, and cost and energy where they are known."""

    def __init__(self, tables: Tables):
        rows = tables["benchmark"]
        rows = rows[rows.kind.isin(PERFORMANCE) & rows.best.fillna(False)]
        self._rows = {
            (row["kernel"], row["gpu"], row["direction"], row["dtype"], row["case"]): row
            for row in rows.to_dict("records")
        }
        self._host = rows.groupby(["kernel", "gpu"]).call_us.median().to_dict()
        prices = tables["survey"][tables["survey"].roof == "price"]
        self._prices = dict(zip(prices.gpu, prices.value, strict=True))
        energy = tables["energy"]
        energy = energy[(energy.provider_kind == "variant") & energy.joules.notna()]
        self._energy = {
            (row.kernel, row.gpu, row.direction, row.dtype, row.case, row.provider): row for row in energy.itertuples()
        }
        self.columns = [*(["USD per 1e9 calls"] if self._prices else []), *(["energy"] if self._energy else [])]
        self.caption = " Both of the headline case." if self.columns else ""

    def cells(self, row) -> list[Cell]:
        """The further cells of a verdict."""
        found = self._rows.get((row.kernel, row.gpu, row.direction, row.dtype, row.case), {})
        peak, host = found.get("peak_bytes"), self._host.get((row.kernel, row.gpu))
        cells = [
            number(None if missing(peak) else peak / 2**20, "{:,.1f} MiB"),
            number(None) if missing(host) else Cell(microseconds(host), host, style="num"),
        ]
        if self._prices:
            dollars, time = self._prices.get(row.gpu), found.get("median_us")
            cells.append(number(None if missing(dollars) or missing(time) else dollars / 3.6 * time, "{:,.3g}"))
        if self._energy:
            energy = self._energy.get((row.kernel, row.gpu, row.direction, row.dtype, row.case, row.provider))
            cells.append(number(energy and energy.joules, "{:.3g} J"))
        return cells


def _only_compiled(verdicts: pd.DataFrame) -> pd.Series:
    """The pairs of which there is nothing to say but that the kernel compiles for the GPU."""
    return (verdicts.kind == "compiled") & (verdicts.status == "ok") & ~verdicts.stale.fillna(False)


def compiled_only(tables: Tables) -> str:
    """The kernels that were compiled for a GPU on which they did not run; or nothing."""
    lines = in_short(tables["verdicts"].to_dict("records"), kinds=("compiled",))
    return f"{'; '.join(lines)}. See Build." if lines else ""


def not_run(tables: Tables) -> str:
    """A sentence on the kernels and GPUs that no document stands behind, as a selection leaves many; or nothing."""
    table = tables["verdicts"]
    table = table[table.status == "none"]
    groups: dict[tuple[str, ...], list[str]] = {}
    for kernel, own in table.groupby("kernel"):
        groups.setdefault(tuple(sorted(own.gpu)), []).append(kernel)
    parts = [f"{listed(kernels)} on {listed(gpus)}" for gpus, kernels in sorted(groups.items())]
    return f"Neither run here nor recorded: {'; '.join(parts)}." if parts else ""


def _verdict_row(row, place: str) -> list[Cell]:
    timed = not missing(row.figure)
    note = "" if missing(row.note) else row.note
    # A build that went well is no evidence that the kernel is right, so a stale one is not painted green.
    built = row.kind == "compiled" and row.status == "ok"
    status = Cell("builds", style="badge") if built else badge(row.status, note=note)
    if is_true(row.stale):
        status = Cell(f"{status.text}, stale", note=note, style="badge stale")
    outcome = {"faster": "good", "slower": "bad"}.get(None if missing(row.verdict) else row.verdict, "")
    return [
        Cell(row.kernel, style="name", link=f"{place}{row.kernel}.html"),
        text(row.gpu, style="name"),
        status,
        badge("kind", label=row.kind),
        text(row.case, note=f"{row.direction} {row.dtype}" if timed else ""),
        text(row.provider, note=config_words(row.config)),
        Cell(rate(row.figure, row.unit), row.figure, microseconds(row.median_us), "num") if timed else number(None),
        number(None if missing(row.roof_fraction) else 100 * row.roof_fraction, "{:.0f} %",
               note="" if missing(row.roof) else row.roof),
        number(row.speedup, "{:.2f}\N{MULTIPLICATION SIGN}", note=row.against if timed else "", style=outcome),
        number(row.speedup_geomean, "{:.2f}\N{MULTIPLICATION SIGN}", note=_cases(row) if timed else ""),
        number(row.speedup_worst, "{:.2f}\N{MULTIPLICATION SIGN}",
               note="" if missing(row.worst_case) else row.worst_case,
               style="bad" if not missing(row.speedup_worst) and row.speedup_worst < 0.995 else ""),
    ]  # fmt: skip


def _cases(row) -> str:
    weak = 0 if missing(row.weak_cases) else int(row.weak_cases)
    return counted(int(row.cases), "case") + (f", {'all' if weak == int(row.cases) else weak} weak" if weak else "")


def compared(tables: Tables) -> pd.DataFrame:
    """The fastest variant of every case that real GPUs timed beside a peer, with ``outcome``."""
    rows = tables["benchmark"]
    rows = rows[rows.kind.isin(PERFORMANCE) & rows.best.fillna(False) & rows.speedup.notna()]
    # A row without a verdict had no quartiles to compare: nothing is decided.
    return rows.assign(outcome=rows.verdict.fillna("undecided")).sort_values("speedup")


def case_table(tables: Tables, outcome: str = "", most: int = 10**9) -> Grid:
    """The cases of one outcome, or all, so many at most: slower ones from the worst on, faster ones from the best."""
    every = compared(tables)
    every = every[every.outcome == outcome] if outcome else every
    styles = {"slower": "bad", "faster": "good"}
    rows = (every.iloc[::-1] if outcome == "faster" else every).iloc[:most]
    empty = {
        "": "No case was timed beside a peer on a GPU.",
        "slower": "No timed case is slower than its fastest peer.",
        "faster": "No timed case is faster than its fastest peer.",
    }
    return Grid(
        f"cases-{outcome or 'all'}",
        ("kernel", "GPU", "kind", "pass", "dtype", "case", "variant", "median", "fastest peer", "speed-up",
         "% of roof"),
        [
            [
                text(row.kernel, style="name"), text(row.gpu, style="name"), origin(row.kind, row.stale),
                text(row.direction), text(row.dtype), text(row.case),
                text(row.provider, note=config_words(row.config)),
                Cell(microseconds(row.median_us), row.median_us, style="num"),
                text(row.peer, note="" if missing(row.weak) else f"weak: {row.weak}"),
                number(row.speedup, "{:.3f}\N{MULTIPLICATION SIGN}", style=styles.get(row.outcome, "")),
                number(None if missing(row.roof_fraction) else 100 * row.roof_fraction, "{:.0f} %"),
            ]
            for row in rows.itertuples()
        ],
        empty=empty[outcome] if len(compared(tables)) else "No case was timed on a GPU.",
        caption=f"The first {most} of {len(every)}; a kernel's own page has all of its." if len(every) > most else "",
        numeric=frozenset({7, 9, 10}),
    )  # fmt: skip


def ladder_table(tables: Tables) -> Grid:
    """The kernel log: every variant after the one it was made from, and what its step brought."""
    return Grid(
        "ladder",
        ("kernel", "GPU", "kind", "pass", "variant", "what it does", "over", "step", "least", "most", "fastest of",
         "figure"),
        [
            [
                text(row.kernel, style="name"), text(row.gpu, style="name"), origin(row.kind, row.stale),
                text(row.direction), text(row.variant, style="name"), text(row.summary), text(row.follows),
                number(row.step_geomean, "{:.2f}\N{MULTIPLICATION SIGN}",
                       note=counted(int(row.compared), "case") if row.compared else ""),
                number(row.step_least, "{:.2f}\N{MULTIPLICATION SIGN}"),
                number(row.step_most, "{:.2f}\N{MULTIPLICATION SIGN}"),
                Cell(f"{row.fastest} of {row.cases}", row.fastest / max(row.cases, 1), style="num"),
                number(None) if missing(row.figure)
                else Cell(rate(row.figure, row.unit), row.figure, f"{row.case} {row.dtype}", "num"),
            ]
            for row in tables["ladder"].sort_values(["kernel", "gpu"], kind="stable").itertuples()
        ],
        empty="No benchmark on a GPU tells its kernel's variants apart.",
        caption="Step: time of the variant it was made from over its own, geometric mean over the cases both were timed"
        " on, each with the faster of its tuned and its default config. Fastest of: the cases at which it beats all"
        " other variants. Figure: its case with the most traffic.",
        numeric=frozenset({7, 8, 9, 10, 11}),
    )  # fmt: skip


def stage_failures(entries: Iterable[Entry]) -> Grid:
    """Every document whose status is not ok, the worst first."""
    bad = [entry for entry in entries if entry.document["status"] != "ok"]
    bad.sort(key=lambda entry: (SEVERITY.index(entry.document["status"]), entry.kernel or "", entry.gpu))
    return Grid(
        "failures",
        ("kernel", "GPU", "stage", "kind", "status", "reason"),
        [
            [
                text(entry.kernel, style="name"), text(entry.gpu, style="name"), text(entry.stage),
                origin(entry.kind, entry.stale), badge(entry.document["status"]), text(entry.document["reason"]),
            ]
            for entry in bad
        ],
        empty="Every stage that ran ended well.",
    )  # fmt: skip


def failed_checks(tables: Tables) -> Grid:
    """Every check that failed, and the command that repeats it."""
    checks = tables["validation"]
    checks = checks[checks.status.isin(["fail", "error"])]
    return Grid(
        "failed-checks",
        ("kernel", "GPU", "check", "variant", "pass", "dtype", "case", "what is wrong"),
        [
            [
                text(row.kernel, style="name"), text(row.gpu, style="name"), text(row.check), text(row.variant),
                text(row.direction), text(row.dtype), text(row.case),
                text(row.reason, note="" if missing(row.replay) else row.replay, style="bad"),
            ]
            for row in checks.itertuples()
        ],
        empty="No check failed.",
    )  # fmt: skip


def untimed(tables: Tables) -> Grid:
    """Providers that should have given a figure and did not, one row for each provider and reason."""
    rows = tables["benchmark"]
    return _without_figure("untimed", rows[~rows.status.isin(["ok", "unsupported"])],
                           "Every provider was timed on every case that it takes.")  # fmt: skip


def unsupported(tables: Tables) -> Grid:
    """Cases that a provider does not take, as it said itself: one row for each provider and reason."""
    rows = tables["benchmark"]
    return _without_figure("unsupported", rows[rows.status == "unsupported"])


def _without_figure(name: str, rows: pd.DataFrame, empty: str = "") -> Grid:
    """A row for each provider and reason; a variant and its default, which fare alike, share one."""
    keys = ["kernel", "gpu", "provider", "direction", "status", "reason"]
    rows = rows.assign(
        reason=rows.reason.fillna("").str.removeprefix("NotImplementedError: "),
        one=rows["case"] + " " + rows["dtype"],
    )
    kinds = rows.drop_duplicates([*keys, "provider_kind"]).sort_values("provider_kind", ascending=False)
    groups = rows.drop_duplicates([*keys, "dtype", "sizes"]).groupby(keys)
    found = groups.agg(cases=("one", "size"), one=("one", "first"))
    found["kinds"] = kinds.groupby(keys).provider_kind.agg(", ".join)
    return Grid(
        name,
        ("kernel", "GPU", "provider", "pass", "status", "cases", "reason"),
        [
            [
                text(row.kernel, style="name"), text(row.gpu, style="name"), text(row.provider, note=row.kinds),
                text(row.direction), badge(row.status), number(row.cases, "{:.0f}"),
                text(row.reason, note=row.one if row.cases == 1 else ""),
            ]
            for row in found.reset_index().itertuples()
        ],
        empty=empty,
        numeric=frozenset({5}),
    )  # fmt: skip
