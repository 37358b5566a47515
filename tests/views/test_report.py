"""The report: pages that load figures and nothing else, say what is wrong first, and escape what documents say."""

import re
import types
import zipfile
from html.parser import HTMLParser

import numpy as np
import pytest
import synthetic
from atlas import cli
from atlas.reporting import comparisons, grid, machines, outcome, work
from atlas.results.collection import collect
from atlas.results.summary import microseconds
from atlas.tables import store

PROVIDERS = "figures/providers-matmul.svg"


class Page(HTMLParser):
    """Text by section, and everything the page would load."""

    def __init__(self, html: str):
        super().__init__()
        self.section, self.inside, self.loads, self.tags = "header", [], [], []
        self.text: dict[str, str] = {}
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        found = dict(attributes)
        if tag == "section":
            self.section = found["id"]
        if tag in ("script", "style"):
            self.inside.append(tag)
        self.loads += [found[name] for name in ("src", "href", "srcset", "data", "action", "poster") if found.get(name)]

    def handle_endtag(self, tag):
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data):
        if not self.inside:
            self.text[self.section] = self.text.get(self.section, "") + " " + " ".join(data.split())


@pytest.fixture
def page(pages):
    return lambda scene, path="report/details.html": Page((pages[scene] / path).read_text())


@pytest.mark.parametrize("scene", ["none", "one", "five"])
def test_pages_load_nothing_but_the_figures_and_lead_to_what_is_there(pages, page, scene):
    for file in [pages[scene] / "report.html", *(pages[scene] / "report").glob("*.html")]:
        for url in page(scene, file.relative_to(pages[scene])).loads:
            assert url == "data:," or (file.parent / url.partition("#")[0]).exists() or url.startswith("#"), url
    html = (pages[scene] / "report.html").read_text()
    assert "<img" not in html and len(html) < 400_000
    style = re.search(r"<style>(.*?)</style>", html, re.S)[1]
    script = re.search(r"<script>(.*?)</script>", html, re.S)[1]
    assert "@media (max-width" not in style, "a sheet of A4 is narrower than 720 pixels, and no phone"
    assert "url(" not in style and "@import" not in style
    assert not re.search(r"fetch|XMLHttp|import\(|https?:", script)


def test_a_wrong_kernel_is_named_at_the_top_in_red(pages, page):
    header = page("five", "report.html").text["header"]
    assert "WRONG: softmax on h200" in header and "Is it right? 1 wrong" in header
    assert '<p class="alarm bad"><strong>WRONG: softmax on h200' in (pages["five"] / "report.html").read_text()
    assert "expected 0.25, got 0.5" in page("five").text["s-failures"]
    assert "python -m atlas validate softmax --gpu h200" in page("five").text["s-failures"], "how to repeat it"


def test_a_run_without_failures_says_where_it_looked(page):
    header = page("one", "report.html").text["header"]
    assert "Yes: 2 kernels" in header and "checks against float64 passed on cpu and h200." in header


def test_a_kernel_that_calls_another_says_with_which_configs_it_was_benchmarked(page):
    said = "Benchmarked on h200 (measured) with configs of softmax from: autotune of this run (0123456789ab)."
    assert page("one", "report/matmul.html").text["header"].count(said) == 1
    assert "with configs of" not in page("five", "report/matmul.html").text["header"], "its documents do not say"


def test_an_empty_run_says_what_to_do(page):
    text = page("none", "report.html").text
    assert "Nothing has run" in text["header"] and "Nothing was validated" in text["header"]
    assert "run snakemake first" in text["s-kernels"]


def test_what_a_sentence_quotes_is_shown_as_code_and_nothing_of_it_is_markup():
    assert grid.prose("run `a < b`, <i>") == "run <code>a &lt; b</code>, &lt;i&gt;"
    assert grid.prose("one ` alone") == "one ` alone"


def test_a_kernels_own_page_leaves_out_the_column_that_names_it():
    rows = [[grid.text(name), grid.number(place), grid.text("x")] for place, name in enumerate("aba")]
    own = grid.of_kernel(grid.Grid("cases", ("kernel", "us", "how"), rows, numeric=frozenset({1})), "a")
    assert own.columns == ("us", "how") and own.numeric == {0}, "numbers stay at the right"
    assert [row[0].text for row in own.rows] == ["0", "2"]


def test_the_fma_lowering_is_stated_in_words_where_others_use_tensor_cores(page):
    build = page("five").text["s-build"]
    assert "On t4 (sm_75) Triton 3.7.1 lowers tl.dot to scalar FMA" in build
    assert "matmul in bf16 and fp16" in build and "a100 (mma)" in build and "h200 (wgmma)" in build
    assert "FMA path" in build
    assert "softmax in" not in build, "it has no tl.dot"


def test_the_best_configs_show_what_they_were_compiled_to(page):
    best = page("five", "report/matmul.html").text["s-configs"]
    assert "wgmma, TMA, warps specialised, 128-bit" in best and "no spills" in best


def test_of_builds_that_may_all_be_meant_the_range_is_shown():
    def build(sizes, registers, spilled, copies="tma", scope="all"):
        return types.SimpleNamespace(
            sizes=sizes, scope=scope, registers=registers, spill_bytes=spilled, matrix_instruction="wgmma",
            async_copies=copies, warp_specialized=False, widest_access_bits=128,
        )  # fmt: skip

    builds = [build("a", 100, 0), build("b", 120, 16, copies="cp.async")]
    exact = work._compiled_to(work._built_for("b", builds))
    assert (exact.text, exact.note, exact.style) == (
        "wgmma, cp.async, 128-bit",
        "120 registers, 16 bytes spilled",
        "bad",
    )
    either = work._compiled_to(work._built_for("c", builds))
    assert (either.text, either.style) == ("wgmma, 128-bit", "")
    assert either.note == "100 to 120 registers, 0 to 16 bytes spilled"
    sampled = [build("a", 100, 0, scope="sample")]  # other cases may have compiled to anything
    assert not work._built_for("c", sampled)


def test_calls_beyond_the_tuned_cases_stand_apart(page):
    text = page("five").text["s-beyond"]
    assert "2.00" in text and "m=3 n=5" in text and "seeds 7" in text and "failed: out of luck" in text
    assert "Nothing was timed beyond" in page("none").text["s-beyond"]


def test_counters_are_shown_with_what_the_declaration_says_must_move(page):
    text = page("five").text["s-counters"]
    assert "2,048 MiB" in text and "2.00\N{MULTIPLICATION SIGN} needed" in text
    assert "global or local memory" in text and "7.5 warps" in text
    assert "Nothing was profiled" in page("none").text["s-counters"], "and how to get one"


def test_joules_of_a_call_stand_with_their_spread_and_what_failed(page, scenes):
    text = page("five").text["s-energy"]
    for words in ("0.6 J", "0.59 J to 0.62 J", "600 W", "118 W", "out of luck"):
        assert words in text
    assert "USD" not in text, "no GPU has a price here"
    assert "No energy was measured" in page("none").text["s-energy"], "and how to"
    tables = store.read(scenes["five"] / "tables")
    tables["energy"]["usd_per_1e9_calls"] = 972.2
    assert "USD per 1e9 calls" in work.energy_table(tables).columns
    assert [work.joules(value) for value in (0.1, 0.0312, 4e-6)] == ["0.1 J", "31.2 mJ", "4 \N{MICRO SIGN}J"]


def test_a_gpu_is_named_once_with_the_tensor_cores_it_uses(page):
    words = {("h200", "wgmma"), ("h200", "mma"), ("a100", "mma")}
    assert work._with_instructions(words) == ["a100 (mma)", "h200 (mma, wgmma)"]
    assert "on tensor cores on a100 (mma) and h200 (wgmma)." in page("one").text["s-build"]


def test_two_gpus_are_compared_on_the_cases_both_timed_beside_their_roofs(scenes, page):
    tables = store.read(scenes["five"] / "tables")
    pair = {"h100", "h200"}
    tables["benchmark"] = tables["benchmark"][tables["benchmark"].gpu.isin(pair)]
    best = tables["benchmark"].query("best and kernel == 'matmul'").set_index(["dtype", "sizes"])
    times = {gpu: best[best.gpu == gpu].median_us for gpu in pair}
    row = {row[0].text: row for row in comparisons.across_table(tables).rows}["matmul"]
    assert [cell.text for cell in row[1:5]] == ["forward", "h200", "h100", "10"], "h200 has the more bandwidth"
    assert (row[2].note, row[3].note) == ("measured", "recorded")
    steps = times["h100"] / times["h200"]
    assert row[5].sort == pytest.approx(float(np.exp(np.log(steps.astype(float)).mean())))
    assert (row[7].sort, row[8].sort) == pytest.approx((steps.min(), steps.max()))
    assert float(row[6].sort) > 1, "4300 over 3000 GB/s, 780 over 720 TFLOP/s"
    assert row[9].text.endswith(" of 10")
    assert "nothing to compare" in page("one").text["s-gpus"]


def test_a_gpu_without_survey_is_compared_without_roofs(scenes):
    tables = store.read(scenes["five"] / "tables")
    tables["survey"] = tables["survey"][tables["survey"].gpu != "h200"]
    rows = [row for row in comparisons.across_table(tables).rows if "h200" in (row[2].text, row[3].text)]
    assert rows and all(row[6].text == "\N{EN DASH}" for row in rows)


def test_fma_that_every_gpu_uses_is_no_loss(kernels, tmp_path, atlas):
    # In fp32 without tf32 tl.dot is FMA everywhere, as it should be.
    for gpu in ("h200", "t4"):
        document = synthetic.build(kernels[1], gpu)
        for config in document["configs"]:
            config["matrix_instruction"] = "fma"
        synthetic.write(tmp_path, "measured", document)
    for command in ("tables", "figures", "report"):
        atlas(command, tmp_path)
    assert "scalar FMA:" not in Page((tmp_path / "report" / "details.html").read_text()).text["s-build"]


def test_fma_of_variants_that_another_gpu_of_the_architecture_lacks_is_no_loss(kernels, tmp_path, atlas):
    for gpu, instruction in (("h100", "fma"), ("h200", "wgmma")):
        document = synthetic.build(kernels[1], gpu)
        for config in document["configs"]:
            config["matrix_instruction"] = instruction
        synthetic.write(tmp_path, "measured", document)
    for command in ("tables", "figures", "report"):
        atlas(command, tmp_path)
    assert "scalar FMA:" not in Page((tmp_path / "report" / "details.html").read_text()).text["s-build"]


def test_losses_stand_beside_wins(page):
    text = page("five").text["s-cases"]
    assert "Slower than the fastest peer" in text and "Faster than the fastest peer" in text
    header = page("five").text["header"]
    total, *outcomes = re.search(r"Of (\d+) timed cases: (\d+) \D+(\d+) \D+(\d+) \D+(\d+) slower", header).groups()
    assert int(total) == sum(map(int, outcomes)), "every timed case has one outcome"


def test_text_of_documents_is_escaped(kernels, tmp_path, atlas):
    hostile = "<script>alert('x')</script> & <b>bold</b>"
    document = synthetic.validate(kernels[0], "h200", wrong="naive")
    document["reason"] = hostile
    document["checks"][0]["reason"] = hostile
    document["checks"][0]["status"] = "fail"
    synthetic.write(tmp_path, "measured", document)
    for command in ("tables", "figures", "report"):
        assert atlas(command, tmp_path) == 0
    html = "".join(path.read_text() for path in [tmp_path / "report.html", *(tmp_path / "report").glob("*.html")])
    assert hostile not in html and "<b>bold" not in html
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &lt;b&gt;bold" in html
    assert Page(html).tags.count("script") == 3, "each page's own"


def test_provenance_states_versions_commit_and_protocols(page):
    text = page("five").text["s-provenance"]
    for words in ("2.13.0+cu130", "3.7.1", "0123456789ab", "timing/1", "validation/1", "2026-11-20", "recorded"):
        assert words in text


def test_every_figure_is_on_a_page_with_its_caption(pages):
    html = "".join(path.read_text() for path in (pages["five"] / "report").glob("*.html"))
    figures = re.findall(r'<figure id="([^"]+)">.*?<img src="../figures/[^"]+".*?<figcaption>(.+?)<', html)
    drawn = {path.stem for path in (pages["five"] / "figures").glob("*.svg")}
    assert {name for name, _ in figures} == drawn and all(caption for _, caption in figures)


def test_a_page_leaves_room_for_figures_that_load_late(pages):
    html = (pages["one"] / "report/matmul.html").read_text()
    width, height = re.search(r'src="../figures/providers-matmul.svg"[^>]* width="(\d+)" height="(\d+)"', html).groups()
    points = re.search(r'<svg [^>]*width="(.+?)pt" height="(.+?)pt"', (pages["one"] / PROVIDERS).read_text()).groups()
    assert [int(width), int(height)] == pytest.approx([float(side) * 4 / 3 for side in points], abs=0.5)


def test_a_kernels_row_leads_to_its_page(pages):
    assert '<a href="report/softmax.html">softmax</a>' in (pages["one"] / "report.html").read_text()
    assert '<figure id="throughput-softmax">' in (pages["one"] / "report" / "softmax.html").read_text()


def test_one_file_holds_all_pages_and_figures(pages, tmp_path, capsys):
    assert cli.main(["report", "--results", str(pages["none"]), "--zip", str(tmp_path / "r.zip")]) == 0
    names = zipfile.ZipFile(tmp_path / "r.zip").namelist()
    assert {"report.html", "report/details.html", "figures/speedup.svg"} <= {*names}
    said = capsys.readouterr().out
    assert said.startswith(f"{pages['none'] / 'report.html'} and ")
    assert said.endswith(f"; all of it in {tmp_path / 'r.zip'}\n")


def test_a_file_to_send_that_cannot_be_written_is_named(pages, tmp_path, capsys):
    assert cli.main(["report", "--results", str(pages["none"]), "--zip", str(tmp_path)]) == 2
    assert f"{tmp_path}: cannot be written: Is a directory" in capsys.readouterr().err


def test_a_missing_figure_is_named_with_the_remedy(kernels, tmp_path, atlas, capsys):
    synthetic.write(tmp_path, "measured", synthetic.build(kernels[0], "t4"))
    atlas("tables", tmp_path)
    assert atlas("report", tmp_path) == 2
    assert "run `python -m atlas figures` first" in capsys.readouterr().err


def test_proofs_show_every_claim_with_figure_and_limit(page):
    text = page("five").text["s-proofs"]
    assert "0.031 at most 0.02 does not hold" in text, "measured on the h200"
    assert "0.015 at most 0.02 holds" in text, "recorded of the a100"
    assert "python -m proofs" in page("none").text["s-proofs"], "how to get one"


def test_a_lower_limit_is_told_from_an_upper_one():
    def limit(found, limit, holds):
        return machines._limit({"found": found, "limit": limit, "holds": holds})

    assert limit(0.7, 0.8, False) == limit(54, 0.8, True) == "at least 0.8"
    assert limit(0.1, 0.8, True) == limit(2, 0.8, False) == "at most 0.8"
    assert limit(0, 0, True) == "0" and limit(None, 3, False) == "3"


def test_what_a_selection_left_out_is_a_sentence_and_no_row(kernels, tmp_path, atlas):
    softmax, matmul = kernels
    for document in synthetic.on_gpu(softmax, "h200"):
        synthetic.write(tmp_path, "recorded", document)
    synthetic.write(tmp_path, "measured", synthetic.build(matmul, "t4"))
    synthetic.write(tmp_path, "recorded", synthetic.validate(matmul, "a100"))
    atlas("tables", tmp_path)
    tables = store.read(tmp_path / "tables")
    assert outcome.not_run(tables) == "Neither run here nor recorded: softmax on a100 and t4; matmul on h200."
    notes = {(row[0].text, row[1].text): row[2].note for row in outcome.verdict_table(tables).rows}
    assert notes == {
        ("matmul", "a100"): "validated, not benchmarked",  # why a kernel that is right has no figure
        ("softmax", "h200"): "",
    }
    assert outcome.compiled_only(tables) == "t4: matmul compiled only; nothing ran there. See Build."


def test_a_gpu_that_ran_some_kernels_is_said_to_have_run_so_many(kernels, tmp_path, atlas):
    softmax, matmul = kernels
    synthetic.write_everything(tmp_path, kernels, recorded=["h200"], built=["t4"], functional=False)
    for document in synthetic.on_gpu(softmax, "h100"):
        synthetic.write(tmp_path, "recorded", document)
    synthetic.write(tmp_path, "measured", synthetic.build(matmul, "h100"))
    atlas("tables", tmp_path)
    tables = store.read(tmp_path / "tables")
    first = outcome.summary(tables).split(".")[0]
    assert first == "2 kernels: h100 (1 of them) and h200 recorded earlier, elsewhere; t4 compiled only"
    compiled = outcome.compiled_only(tables)
    not_there = "h100: matmul compiled only, not run there as others were"
    assert compiled == f"{not_there}; t4: matmul, softmax compiled only; nothing ran there. See Build."
    assert ("matmul", "h100") not in {(row[0].text, row[1].text) for row in outcome.verdict_table(tables).rows}
    coverage = tables["coverage"].query("kernel == 'matmul' and gpu == 'h100' and stage == 'benchmark'")
    assert coverage.reason.iloc[0] == "matmul on h100 was not measured here and there is no record"


def test_a_run_that_compiled_alone_says_so_in_place_of_its_verdicts(kernels, tmp_path, atlas):
    synthetic.write_everything(tmp_path, kernels, built=["t4"], functional=False)
    atlas("tables", tmp_path)
    table = outcome.verdict_table(store.read(tmp_path / "tables"))
    assert not table.rows and table.empty == "Nothing has run; what was compiled is under Build."


@pytest.mark.parametrize(
    ("time", "words"),
    [(5.28, "5.28 µs"), (372.4, "372 µs"), (999.4, "999 µs"), (999.6, "1 ms"), (37874.9, "37.9 ms"),
     (1234567.0, "1,235 ms")],
)  # fmt: skip
def test_a_time_is_written_without_an_exponent(time, words):
    assert microseconds(time) == words


def test_a_check_at_which_torch_misses_the_tolerance_is_not_shown_as_a_failure(kernels, tmp_path, atlas):
    document = synthetic.validate(kernels[0], "h200")
    document["checks"][0] |= {"tolerance_used": 179.0, "error_over_torch": 1.0}
    synthetic.write(tmp_path, "measured", document)
    atlas("tables", tmp_path)
    (row,) = work.validation_table(store.read(tmp_path / "tables"), collect(tmp_path)).rows
    assert row[8].sort <= 100 and row[8].note == "torch beyond it in 1 check"


def test_what_a_provider_does_not_take_is_not_among_the_failures(scenes):
    tables = store.read(scenes["five"] / "tables")
    rows = tables["benchmark"].copy()
    naive = (rows.provider == "naive") & (rows.gpu == "h200")
    rows.loc[naive, ["status", "reason"]] = ["unsupported", "NotImplementedError: too long"]
    tables["benchmark"] = rows
    failed = [[cell.text for cell in row] for row in outcome.untimed(tables).rows]
    assert {(row[1], row[2], row[4]) for row in failed} == {("t4", "torch.compile", "failed")}
    alone = rows[(rows.gpu == "t4") & (rows.status == "failed")].iloc[:1]
    note = outcome._without_figure("untimed", alone).rows[0][6].note
    assert note == f"{alone['case'].iloc[0]} {alone['dtype'].iloc[0]}", "the one case of a reason is named"
    forward, *_ = [row for row in outcome.unsupported(tables).rows if row[3].text == "forward"]
    assert forward[2].note == "variant, default" and forward[6].text == "too long"
    assert forward[5].text == "8", "cases, each once"
