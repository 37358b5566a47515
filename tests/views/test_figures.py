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
from atlas import ROOT, catalog
from atlas.figures import beyond, facts, overviews, sheet, sizes, work
from atlas.figures.names import figure_names
from atlas.figures.sheet import RC, hues
from atlas.host import gpus
from atlas.reading.config import load_gpus
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
def test_every_named_figure_is_drawn(pages, scene, kernels):
    drawn = {path.name for path in (pages[scene] / "figures").iterdir()}
    assert drawn == {f"{name}.svg" for name in figure_names(kernels)}


def test_a_figure_has_no_ground_and_colours_for_a_dark_screen(pages):
    drawn = (pages["one"] / "figures" / "throughput-softmax.svg").read_text()
    assert "prefers-color-scheme:dark" in drawn and f'[style*="fill: {sheet.INK}"]' in drawn
    assert f"fill: {sheet.INK}" in drawn and "#ffffff" not in drawn, "what a dark ground changes is found by its text"


def test_no_two_hues_are_alike_on_a_light_or_a_dark_ground():
    dark = [sheet._DARK.get(hue.lower(), hue) for hue in sheet.HUES]
    for palette in (sheet.HUES, dark):
        shades = np.array([[int(hue[place : place + 2], 16) for place in (1, 3, 5)] for hue in palette])
        assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(shades, 2)) > 50


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
    for draw in (sizes.throughput, sizes.against_peers, work.tuning):
        assert "there is no record of one" in texts(draw(tables, "softmax")).replace("\n", " ")
    assert "compiled, not run" in texts(work.build(tables, "softmax"))


def test_every_gpu_has_a_mark_in_one_panel_and_a_panel_beside_its_peers(scenes):
    one, five = (store.read(scenes[scene] / "tables") for scene in ("one", "five"))
    assert "t4" in texts(sizes.throughput(five, "softmax")) and len(sizes.throughput(five, "softmax").axes) == 2
    shown = [axes for axes in sizes.against_peers(five, "softmax").axes if axes.axison]
    assert len(shown) == 5 and len(sizes.against_peers(one, "softmax").axes) == 1


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
    span = f"{best.speedup.min():.2f}\u2013{best.speedup.max():.2f}"
    assert f"{mean:.2f}\u00d7  ({span})" in texts(overviews.speedup(tables))


def test_calls_beyond_the_tuned_cases_stand_at_their_factor_and_those_off_the_axis_on_its_edge(scenes):
    tables = store.read(scenes["five"] / "tables")
    assert "Nothing was timed beyond" in texts(beyond.beyond(store.read(scenes["none"] / "tables")))
    own = tables["beyond"].query("kernel == 'softmax' and ratio.notna()").iloc[:1]
    calls = [own.assign(ratio=2.0), own.assign(ratio=0.5), own.assign(ratio=16.0), own.assign(mode="step", ratio=0.25)]
    elsewhere = own.assign(gpu="cpu", kind="functional", ratio=3.0)
    other = own.assign(gpu="h100", kernel="matmul", ratio=1.0)
    with matplotlib.rc_context(RC):
        figure = beyond.beyond(tables | {"beyond": pd.concat([*calls, elsewhere, other])})
        nothing_is_clipped_or_overlaps(figure)
    h100, h200 = figure.axes
    marks = {line.get_marker(): list(line.get_xdata()) for line in h200.lines if line.get_linestyle() == "None"}
    assert marks == {"o": [1.0, -1.0, 2.0], "^": [], "s": [-2.0], "|": [0.5]}, "16 is off the axis, and in the mean"
    assert h100.get_xlim() == h200.get_xlim() and "cpu" not in texts(figure)
    assert texts(figure).count("not timed") == 2, "each kernel on the other GPU"


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
        of_all = (overviews.speedup, overviews.transfer, overviews.roof_fraction, overviews.rooflines, work.seconds,
                  beyond.beyond)  # fmt: skip
        figures = [draw(tables) for draw in of_all]
        figures += [draw(tables, long) for draw in (sizes.throughput, sizes.against_peers, work.tuning, work.build)]
    for figure in figures:
        nothing_is_clipped_or_overlaps(figure)


def test_the_names_of_many_roofs_that_are_near_stay_within_the_sheet(scenes):
    """Those of an H200 with int8, fp8, bf16, fp16 and tf32 were cut off at the right."""
    tables = of_gpus(scenes, "h100", "h200")
    rows, survey = tables["benchmark"], tables["survey"]
    dtypes = ["bf16", "fp16", "tf32", "fp32"]
    own = rows.index[(rows.kernel == "matmul") & rows.best.fillna(False)]
    rows.loc[own, "dtype"] = [dtypes[place % len(dtypes)] for place in range(len(own))]
    roof = survey[(survey.roof == "matmul_bf16") & (survey.kind != "published")]
    tables["survey"] = pd.concat([survey, roof.assign(roof="matmul_tf32", value=roof.value / 1.9)])
    figure = overviews.rooflines(tables)
    assert any("tf32" in text.get_text() and "bf16" in text.get_text() for text in drawn(figure)), "they share a label"
    nothing_is_clipped_or_overlaps(figure)


def test_the_head_of_a_pass_is_whole_where_the_cases_have_short_names(scenes):
    """Sizes such as 4096 alone left so little room that ``forward bf16`` lost its first letters."""
    tables = of_gpus(scenes, "h100", "h200")
    rows = tables["benchmark"]
    short = {sizes: json.dumps({"n": 2**i}) for i, sizes in enumerate(rows.sizes.unique())}
    tables["benchmark"] = rows.assign(sizes=rows.sizes.map(short))
    with matplotlib.rc_context(RC):
        for draw in (sizes.throughput, sizes.against_peers):
            nothing_is_clipped_or_overlaps(draw(tables, "softmax"))


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


@pytest.mark.parametrize(
    ("cases", "labels", "title"),
    [
        ([{"n": 4096}, {"n": 2**20}], ["4096", "1Mi"], "n; n columns, or elements"),  # one size varies
        ([{"u": 512, "w": 512}, {"u": 1024, "w": 1024}], ["512", "1024"], "u = w"),  # square
        ([{"u": 8, "w": 32}, {"u": 16, "w": 4}], ["8\u00d732", "16\u00d74"], "u \u00d7 w"),  # two sizes vary
        ([{"u": 1024, "w": 16}, {"u": 2048, "w": 16}], ["1024", "2048"], "u; everywhere w=16"),  # one is fixed
        ([{"u": 7}], ["7"], "u"),  # a single case
        ([{"h": 4, "s": 8}, {"h": 2, "s": 9}], ["4\u00d78", "2\u00d79"], "h \u00d7 s; h heads, s keys"),
        ([{"u": 4, "s": 8}, {"u": 2, "s": 9}], ["4\u00d78", "2\u00d79"], "u \u00d7 s"),  # no heads: no keys
        ([{"u": 8, "w": 9}, {"u": 7, "w": 8, "x": 16}], ["8\u00d79", "7\u00d78 x=16"], "u \u00d7 w"),
        ([{"u": 8, "on": True, "op": "max"}, {"u": 9, "on": False, "op": "none"}], ["8 on op=max", "9"], "u"),
    ],
)
def test_a_case_is_named_by_what_varies(cases, labels, title):
    rows = [{"direction": "forward", "dtype": "bf16", "sizes": json.dumps(case), "bytes": 1} for case in cases]
    found = facts.Cases(pd.DataFrame(rows))
    assert (sorted(found.labels), found.title) == (sorted(labels), title)
    assert found.heads == [(0.0, "forward bf16")] and sorted(found.position.values()) == [*range(1, len(cases) + 1)]


def of_gpus(scenes, *gpus):
    """The tables of five GPUs, with the benchmarks and trials of these alone."""
    tables = store.read(scenes["five"] / "tables")
    return tables | {name: tables[name][tables[name].gpu.isin(gpus)].copy() for name in ("benchmark", "trials")}


def test_what_is_compared_has_one_scale(scenes):
    panels = [axes for axes in overviews.rooflines(of_gpus(scenes, "t4", "h200")).axes if axes.get_visible()]
    assert panels[0].get_ylim() == panels[1].get_ylim() and panels[0].get_xlim() == panels[1].get_xlim()
    seconds = work.seconds(store.read(scenes["one"] / "tables")).axes
    assert len({axes.get_xlim() for axes in seconds}) == 1, "a second is as long where a GPU was only compiled for"
    panels = sizes.against_peers(of_gpus(scenes, "t4", "h200"), "matmul").axes
    assert len({axes.get_xlim() for axes in panels}) == 1


def test_a_profiled_case_stands_at_what_dram_moved_too(scenes):
    tables = of_gpus(scenes, "h200")
    best = tables["benchmark"].query("kernel == 'matmul' and best and direction == 'forward'").iloc[:1]
    key = best[["kind", "gpu", "kernel", "direction", "dtype", "sizes", "provider", "provider_kind", "identity"]]
    one = key.assign(dram_read_bytes=best.bytes, dram_write_bytes=best.bytes)
    counted = tables["profile"].iloc[:0]

    def diamonds(launches):
        (axes,) = overviews.rooflines(tables | {"profile": pd.concat([counted, *launches])}).axes
        return [tuple(line.get_xdata()) for line in axes.lines if line.get_marker() == "D" and len(line.get_xdata())]

    half = best.flops.item() / best.bytes.item() / 2  # twice the bytes
    assert diamonds([one]) == [(pytest.approx(half),)]
    assert diamonds([one, one]) == [(pytest.approx(half / 2),)], "a call of two launches"
    assert diamonds([one, one.assign(dram_read_bytes=None)]) == [], "of one of which ncu gave nothing"
    assert diamonds([one.assign(identity="of other code")]) == []
    assert "DRAM moved" not in texts(overviews.rooflines(tables | {"profile": counted}))


def test_a_gpu_without_some_of_the_cases_is_named_where_they_are_missing(scenes):
    tables = of_gpus(scenes, "h100", "h200")
    rows = tables["benchmark"]
    tables["benchmark"] = rows[(rows.gpu == "h200") | ((rows.dtype == "bf16") & (rows.kernel == "softmax"))]
    assert texts(overviews.roof_fraction(tables)).count("not timed") == 1, "matmul"
    rows = tables["benchmark"]
    tables["benchmark"] = rows.assign(roof_fraction=rows.roof_fraction.where(rows.gpu == "h200"))
    assert texts(overviews.roof_fraction(tables)).count("no survey") == 2, "softmax, forward and backward"
    assert "no survey: h100" in texts(sizes.throughput(tables, "softmax"))
    tables["benchmark"] = tables["benchmark"].assign(roof_fraction=np.nan)
    assert "No survey of these GPUs" in texts(sizes.throughput(tables, "softmax"))


def test_a_gpu_has_one_colour_whichever_others_ran_the_kernel(scenes):
    tables = of_gpus(scenes, "a100", "h100", "h200")
    rows = tables["benchmark"]
    tables["benchmark"] = rows[(rows.kernel == "softmax") | (rows.gpu != "a100")]
    colours = []
    for kernel in ("softmax", "matmul"):
        legend = sizes.throughput(tables, kernel).legends[0]
        labels = [text.get_text().rstrip("\N{DAGGER}") for text in legend.get_texts()]
        colours.append(dict(zip(labels, [line.get_color() for line in legend.get_lines()], strict=True)))
    assert colours[0]["h200"] == colours[1]["h200"] and "a100" not in colours[1]


def test_a_variant_and_a_peer_may_share_a_name(scenes):
    tables = of_gpus(scenes, "h200")
    tables["benchmark"]["provider"] = tables["benchmark"].provider.replace("pointers", "torch")
    panel = sizes.against_peers(tables, "matmul").axes[0]
    assert sum(len(line.get_ydata()) == 10 for line in panel.lines) >= 5, "three variants and two peers"


def test_a_provider_stands_at_the_fastest_peers_time_over_its_own(scenes):
    tables = of_gpus(scenes, "h200")
    rows = tables["benchmark"].query("kernel == 'matmul' and provider_kind != 'default'")
    factors = sizes._factors(rows)
    assert factors.to_numpy() == pytest.approx(rows.speedup.astype(float).to_numpy())
    alone = sizes._factors(rows[rows.provider_kind == "variant"])
    assert alone.max() == 1.0, "where no peer ran, beside the fastest variant"


def test_a_case_that_peers_alone_ran_has_no_row_beside_them(scenes):
    """Rows of a peer at 1x, fifteen of them below reduction's, said nothing of the kernel."""
    tables = of_gpus(scenes, "h200")
    rows = tables["benchmark"]
    gone = rows[(rows.kernel == "softmax") & (rows.provider_kind == "variant")].sizes.iloc[0]
    rows = rows[(rows.sizes != gone) | (rows.provider_kind == "peer")]
    left = sizes.against_peers(tables | {"benchmark": rows}, "softmax").axes[0].get_yticks()
    every = sizes.against_peers(tables, "softmax").axes[0].get_yticks()
    assert 0 < len(left) < len(every)
    alone = rows[rows.provider_kind == "peer"]
    assert len(sizes.against_peers(tables | {"benchmark": alone}, "softmax").axes[0].get_yticks()), "all there is"


def test_the_progress_of_a_search_fills_its_panel(scenes):
    """Searches begin at some 1.1 times their best: on an axis to 2 they were a line along its foot."""
    tables = of_gpus(scenes, "h200")
    trials = tables["trials"]
    worst = trials.groupby(["direction", "dtype", "sizes"]).median_us.transform("min") * 1.05
    tables["trials"] = trials.assign(median_us=trials.median_us.clip(upper=worst))
    assert work.tuning(tables, "softmax").axes[0].get_ylim()[1] == pytest.approx(1.1)


def test_a_peer_beyond_the_roof_is_within_the_axis(scenes):
    tables = of_gpus(scenes, "h200")
    rows = tables["benchmark"]
    peer = rows[(rows.provider_kind == "peer") & (rows.provider == rows.peer)].index[0]
    rows.loc[peer, "roof_fraction"] = 1.7
    assert overviews.roof_fraction(tables).axes[0].get_xlim()[1] > 170


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


@pytest.mark.parametrize("kernel", catalog.names())
def test_sizes_of_one_letter_are_explained_below_the_title(kernel):
    """A reader of ``4x16x4096x192x128`` is told what each number is of."""
    cases = catalog.load(kernel).cases(gpus.gpu("h200", load_gpus()["h200"]))
    letters = {name for case in cases for name, _ in case.sizes if len(name) == 1}
    assert letters == set(facts.meanings(letters))
