"""Figures: always the files Snakemake expects, and what they show is what may be compared."""

import itertools
import json
import subprocess
import sys

import matplotlib
import numpy as np
import pandas as pd
import pytest
import synthetic
from atlas import ROOT
from atlas.figures import facts, overviews, sheet, sizes, work
from atlas.figures.names import figure_names
from atlas.figures.sheet import RC, hues
from atlas.tables import store
from atlas.tables.store import generation
from matplotlib.lines import Line2D
from matplotlib.text import Text


def drawn(figure) -> list[Text]:
    """The texts that are drawn: not empty, not hidden, no label of a tick outside its axis' limits."""
    outside = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            outside |= {label for t in ticks if not low <= t.get_loc() <= high for label in (t.label1, t.label2)}
    found = [text for text in figure.findobj(Text) if text.get_text().strip() and text not in outside]
    return [text for text in found if text.get_visible() and text.get_window_extent().width > 1]


def texts(figure) -> str:
    """Every word on a figure."""
    return "\n".join(text.get_text() for text in figure.findobj(match=lambda artist: hasattr(artist, "get_text")))


@pytest.mark.parametrize(("scene", "kernels"), [("none", []), ("one", ["matmul", "softmax"])])
def test_every_named_figure_is_drawn_as_svg_and_png(pages, scene, kernels):
    drawn = {path.name for path in (pages[scene] / "figures").iterdir()}
    assert drawn == {f"{name}.{suffix}" for name in figure_names(kernels) for suffix in ("svg", "png")}


def test_names_are_found_without_importing_torch_or_matplotlib():
    program = (
        "import sys; from atlas.figures.names import figure_names; figure_names(['softmax']); "
        "print([m for m in ('torch', 'matplotlib', 'pandas', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT / "workflow"
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("draw", [overviews.speedup, overviews.transfer, overviews.roof_fraction, overviews.rooflines])
def test_a_figure_without_data_says_why_in_a_sentence(scenes, draw):
    words = texts(draw(store.read(scenes["none"] / "tables")))
    assert "No GPU was measured here and there is no record of one" in words.replace("\n", " ")


def test_a_kernel_that_was_only_built_says_so_in_place_of_its_speed(kernels, tmp_path, atlas):
    synthetic.write_everything(tmp_path, kernels, built=["t4"], functional=True)
    atlas("tables", tmp_path)
    tables = store.read(tmp_path / "tables")
    for draw in (sizes.throughput, sizes.overlay, work.tuning):
        assert "there is no record of one" in texts(draw(tables, "softmax")).replace("\n", " ")
    assert "compiled, not run" in texts(work.build(tables, "softmax"))


def test_gpus_are_laid_over_one_another_where_there_are_several(scenes):
    one, five = (store.read(scenes[scene] / "tables") for scene in ("one", "five"))
    assert "Of h200 alone there are figures" in texts(sizes.overlay(one, "softmax")).replace("\n", " ")
    assert "t4" in texts(sizes.overlay(five, "softmax")) and len(sizes.overlay(five, "softmax").axes) > 2


def test_the_interpreter_enters_no_figure_about_speed(scenes):
    tables = store.read(scenes["five"] / "tables")
    assert "cpu" not in set(facts.performance(tables["benchmark"]).gpu)
    of_all = [overviews.speedup, overviews.roof_fraction, overviews.rooflines, overviews.transfer]
    figures = [draw(tables) for draw in of_all]
    for figure in [*figures, sizes.throughput(tables, "softmax"), work.tuning(tables, "softmax")]:
        words = texts(figure)
        assert "cpu" not in words and "functional" not in words
    assert "cpu (interpreter)" in texts(work.seconds(tables)), "its seconds are real"


def test_recorded_and_stale_figures_are_marked_and_the_marks_explained(scenes):
    tables = store.read(scenes["five"] / "tables")
    tables["benchmark"].loc[tables["benchmark"].gpu == "h100", "stale"] = True
    words = texts(sizes.throughput(tables, "softmax"))
    for text in (
        "a100\u2020",
        "h100\u2020\u2021",
        "\u2020 recorded",
        "\u2021 stale",
        "driver\u00a0580.95.05",
        "timing/1",
    ):
        assert text in words
    assert "h200\u2020" not in words, "it was measured here"


def test_a_heat_map_cell_is_the_geometric_mean_of_its_own_gpu_alone(scenes):
    tables = store.read(scenes["five"] / "tables")
    best = tables["benchmark"].query("kernel == 'softmax' and direction == 'forward' and gpu == 'h200' and best")
    mean = np.exp(np.log(best.speedup).mean())
    assert f"{mean:.2f}\u00d7\n{len(best)} cases" in texts(overviews.speedup(tables))


def test_configs_carried_to_their_own_gpu_reach_all_of_its_best(scenes):
    words = texts(overviews.transfer(store.read(scenes["five"] / "tables")))
    assert words.count("100 %") >= 5, "the diagonal"


def test_transfer_needs_two_gpus_and_says_so(scenes):
    assert "Only h200 has tuning results" in texts(overviews.transfer(store.read(scenes["one"] / "tables")))


def test_the_build_figure_tells_fma_from_tensor_cores(scenes):
    words = texts(work.build(store.read(scenes["five"] / "tables"), "matmul"))
    for text in ("wgmma (tensor cores)", "mma (tensor cores)", "FMA (no tensor cores)", "sm_75", "sm_90"):
        assert text in words


def test_no_text_is_clipped_or_overlaps_with_long_names_and_five_gpus(scenes):
    tables = store.read(scenes["five"] / "tables")
    long = "a_kernel_with_an_exceptionally_long_name_indeed"
    for name in tables:
        if "kernel" in tables[name]:
            tables[name]["kernel"] = tables[name]["kernel"].replace("softmax", long)
    tables["benchmark"]["provider"] = tables["benchmark"]["provider"].replace("liger", "liger-kernel with autograd")
    with matplotlib.rc_context(RC):
        of_all = (overviews.speedup, overviews.transfer, overviews.roof_fraction, overviews.rooflines, work.seconds)
        figures = [draw(tables) for draw in of_all]
        figures += [draw(tables, long) for draw in (sizes.throughput, sizes.overlay, work.tuning, work.build)]
    for figure in figures:
        nothing_is_clipped_or_overlaps(figure)


def nothing_is_clipped_or_overlaps(figure):
    figure.draw_without_rendering()
    width, height = figure.get_size_inches() * figure.dpi
    shown = [(text, text.get_window_extent()) for text in drawn(figure)]
    for text, box in shown:
        assert box.x0 > -2 and box.x1 < width + 2 and box.y0 > -2 and box.y1 < height + 2, text.get_text()
    # A slanted label's box is larger than the label, so only level text is compared.
    level = [(text, box.shrunk(0.9, 0.8)) for text, box in shown if text.get_rotation() == 0]
    for (one, first), (other, second) in itertools.combinations(level, 2):
        assert not first.overlaps(second), f"{one.get_text()!r} over {other.get_text()!r}"


def test_slanted_sizes_leave_the_next_panels_title_its_room(scenes):
    # Products of three sizes that differ slant, and the longer they are, the deeper they reach.
    tables = store.read(scenes["one"] / "tables")
    benchmark = tables["benchmark"]
    ranks = benchmark.groupby(["kernel", "case"]).ngroup()
    benchmark["sizes"] = [json.dumps({"m": 12345 + rank, "n": 18193 + rank, "k": 12288 + 3 * rank}) for rank in ranks]
    with matplotlib.rc_context(RC):
        figure = sizes.throughput(tables, "matmul")
    figure.draw_without_rendering()
    titles = [axes.title.get_window_extent() for axes in figure.axes]
    labels = [axes.xaxis.label.get_window_extent() for axes in figure.axes]
    assert len(titles) > 1 and figure.axes[0].get_xticklabels()[0].get_rotation() == 35
    assert all(label.y0 > title.y1 for label, title in zip(labels[:-1], titles[1:], strict=True))


@pytest.mark.parametrize(
    ("cases", "labels", "title"),
    [
        ([{"n": 4096}, {"n": 2**20}], ["4096", "1Mi"], "n"),  # one size varies
        ([{"m": 512, "n": 512, "k": 512}, {"m": 1024, "n": 1024, "k": 1024}], ["512", "1024"], "m = n = k"),  # square
        ([{"m": 8, "n": 32}, {"m": 16, "n": 4}], ["8\u00d732", "16\u00d74"], "m \u00d7 n"),  # two sizes vary
        ([{"s": 1024, "h": 16}, {"s": 2048, "h": 16}], ["1024", "2048"], "s   (h=16)"),  # one is fixed
        ([{"m": 7}], ["7"], "m"),  # a single case
        ([{"m": 8, "n": 9}, {"m": 8, "n": 9, "pitch": 16}], ["8\u00d79", "8\u00d79 pitch=16"], "m \u00d7 n"),
    ],
)
def test_the_size_axis_names_what_varies(cases, labels, title):
    table = pd.DataFrame({"sizes": [json.dumps(case) for case in cases], "bytes": range(1, len(cases) + 1)})
    axis = facts.CaseAxis(list(table.sizes), list(table.bytes))
    assert (axis.labels, axis.title) == (labels, title)


def of_gpus(scenes, *gpus):
    """The tables of five GPUs, with the benchmarks and trials of these alone."""
    tables = store.read(scenes["five"] / "tables")
    return tables | {name: tables[name][tables[name].gpu.isin(gpus)].copy() for name in ("benchmark", "trials")}


def test_gpus_of_one_magnitude_stand_side_by_side_on_one_scale(scenes):
    def tops(*gpus):
        figure = sizes.throughput(of_gpus(scenes, *gpus), "matmul")
        return [axes.get_ylim() for axes in figure.axes[: len(gpus)]]

    assert tops("h100", "h200")[0] == tops("h100", "h200")[1]
    t4, h200 = sorted(tops("t4", "h200"))
    assert h200[1] > 100 * t4[1], "where one is far slower its curves would lie along the axis"
    panels = [axes for axes in overviews.rooflines(of_gpus(scenes, "t4", "h200")).axes if axes.get_visible()]
    assert panels[0].get_ylim() == panels[1].get_ylim() and panels[0].get_xlim() == panels[1].get_xlim()
    seconds = work.seconds(store.read(scenes["one"] / "tables")).axes
    assert len({axes.get_xlim() for axes in seconds}) == 1, "a second is as long where a GPU was only compiled for"


def test_a_gpu_without_some_of_the_cases_is_named_where_they_are_missing(scenes):
    tables = of_gpus(scenes, "h100", "h200")
    rows = tables["benchmark"]
    tables["benchmark"] = rows[(rows.gpu == "h200") | ((rows.dtype == "bf16") & (rows.kernel == "softmax"))]
    throughput = texts(sizes.throughput(tables, "softmax"))
    assert "not timed on h100" in throughput and "no fp32 case" not in throughput
    assert texts(sizes.overlay(tables, "softmax")).count("not timed: h100") == 2, "fp32, forward and backward"
    assert texts(overviews.roof_fraction(tables)).count("not timed") == 1, "matmul"
    rows = tables["benchmark"]
    tables["benchmark"] = rows.assign(roof_fraction=rows.roof_fraction.where(rows.gpu == "h200"))
    assert texts(overviews.roof_fraction(tables)).count("no survey") == 2, "softmax, forward and backward"
    assert texts(sizes.overlay(tables, "softmax")).count("no survey: h100") == 2, "bf16, forward and backward"


def test_a_gpu_has_one_colour_whichever_others_ran_the_kernel(scenes):
    tables = of_gpus(scenes, "a100", "h100", "h200")
    rows = tables["benchmark"]
    tables["benchmark"] = rows[(rows.kernel == "softmax") | (rows.gpu != "a100")]
    colours = []
    for kernel in ("softmax", "matmul"):
        legend = sizes.overlay(tables, kernel).legends[0]
        labels = [text.get_text().rstrip("\N{DAGGER}") for text in legend.get_texts()]
        colours.append(dict(zip(labels, [line.get_color() for line in legend.get_lines()], strict=True)))
    assert colours[0]["h200"] == colours[1]["h200"] and "a100" not in colours[1]


def test_a_line_breaks_at_a_case_that_was_not_timed(scenes):
    tables = of_gpus(scenes, "h200")
    rows = tables["benchmark"]
    middle = rows.sizes == rows[rows.kernel == "matmul"].sort_values("bytes").sizes.unique()[2]
    tables["benchmark"] = rows[~((rows.provider == "pointers") & middle)]
    lines = {line.get_marker(): line.get_ydata() for line in sizes.throughput(tables, "matmul").axes[0].lines}
    assert sorted(np.isnan(np.asarray(y, float)).sum() for y in lines.values() if len(y) == 5)[-2:] == [0, 1]


def test_a_variant_and_a_peer_may_share_a_name(scenes):
    tables = of_gpus(scenes, "h200")
    tables["benchmark"]["provider"] = tables["benchmark"].provider.replace("pointers", "torch")
    panel = sizes.throughput(tables, "matmul").axes[0]
    assert sum(len(line.get_ydata()) == 5 for line in panel.lines) == 5, "three variants and two peers"


def test_what_one_size_makes_no_curve_of_is_named(scenes):
    tables = of_gpus(scenes, "h200")
    rows = tables["benchmark"]
    tables["benchmark"] = rows[(rows.dtype != "fp16") | (rows.sizes == rows[rows.kernel == "matmul"].sizes.iloc[0])]
    assert "in the tables alone: forward\u00a0\u00b7\u00a0fp16." in texts(sizes.throughput(tables, "matmul"))


def test_a_peer_beyond_the_roof_is_within_the_axis(scenes):
    tables = of_gpus(scenes, "h200")
    rows = tables["benchmark"]
    peer = rows[(rows.provider_kind == "peer") & (rows.provider == rows.peer)].index[0]
    rows.loc[peer, "roof_fraction"] = 1.7
    assert overviews.roof_fraction(tables).axes[0].get_xlim()[1] > 170


def test_long_headings_stay_above_their_own_panel(scenes):
    tables = of_gpus(scenes, "h100", "h200")
    flag = {"activation": "gelu_tanh", "bias": False, "residual": False}
    rows = tables["benchmark"]
    tables["benchmark"] = rows.assign(sizes=[json.dumps(json.loads(case) | flag) for case in rows.sizes])
    with matplotlib.rc_context(RC):
        figure = sizes.throughput(tables, "matmul")
    figure.draw_without_rendering()
    headings = [text.get_text() for text in drawn(figure) if text.get_text().startswith("forward")]
    assert len(headings) == 4 and all("\n" in heading for heading in headings), "in two lines"
    nothing_is_clipped_or_overlaps(figure)


def test_a_config_that_was_given_up_on_the_other_gpu_counts_as_slow_as_it_was(scenes):
    tables = of_gpus(scenes, "h100", "h200")

    def cell(row, column):
        words = [text.get_text() for text in overviews.transfer(tables).axes[0].texts]
        return words[2 * row + column]

    share, cases = cell(0, 1).split(" %\n")
    trials = tables["trials"]
    problem = ["kernel", "direction", "dtype", "sizes", "variant", "config"]
    theirs = trials[trials.best & (trials.gpu == "h100")][problem]
    chosen = trials[(trials.gpu == "h200") & ~trials.best].reset_index().merge(theirs, on=problem).iloc[0]["index"]
    there = trials.index == chosen
    trials.loc[there, ["status", "median_us"]] = ["stopped", 1e6 * float(trials.median_us.max())]
    slow, same = cell(0, 1).split(" %\n")
    assert float(slow) < float(share) and same == cases
    tables["trials"] = trials[~there]
    assert cell(0, 1).split("\n")[1] == f"{int(cases.split()[0]) - 1} of {cases}"


def test_the_share_of_close_configs_is_of_all_that_were_timed(scenes):
    tables = of_gpus(scenes, "h200")
    trials = tables["trials"]
    slow = trials.median_us > 1.3 * trials.groupby(["kernel", "direction", "dtype", "sizes"]).median_us.transform("min")
    before = work.tuning(tables, "matmul").axes[1]
    tables["trials"] = trials.assign(status=trials.status.where(~slow, "stopped"))
    after = work.tuning(tables, "matmul").axes[1]
    assert [list(line.get_xdata()) for line in after.lines] == [list(line.get_xdata()) for line in before.lines]


def test_later_architectures_stand_to_the_right():
    assert sorted(["sm_100", "sm_75", "gfx942", "sm_90"], key=generation) == [
        "gfx942", "sm_75", "sm_90", "sm_100",
    ]  # fmt: skip


def test_the_same_tables_give_the_same_bytes(pages, tmp_path, atlas):
    (tmp_path / "tables").symlink_to(pages["none"] / "tables")
    atlas("figures", tmp_path)
    for path in (tmp_path / "figures").iterdir():
        assert path.read_bytes() == (pages["none"] / "figures" / path.name).read_bytes()


@pytest.mark.parametrize(("rows", "above"), [(1, False), (6, True)])
def test_the_legend_of_a_tall_figure_is_where_its_first_panel_is(rows, above):
    made = sheet.Sheet("title", "subtitle", rows=rows, legend=[(Line2D([], []), "name")])
    made.figure.draw_without_rendering()
    legend = made.figure.legends[0].get_window_extent()
    first, last = (panel.get_window_extent() for panel in (made.all()[0], made.all()[-1]))
    assert legend.y0 > first.y1 if above else legend.y1 < last.y0
    subtitle = next(text for text in made.figure.texts if text.get_text() == "subtitle")
    assert legend.y1 < subtitle.get_window_extent().y0


def test_no_two_names_are_drawn_alike():
    lines = hues([f"kernel{i}" for i in range(40)])
    assert len({(line.color, line.marker) for line in lines.values()}) == 40
