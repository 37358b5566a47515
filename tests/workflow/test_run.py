"""One full run on the interpreter, two kernels and one GPU that is elsewhere; then what edits make of it."""

import json
import os
import sys

import pytest

from .conftest import Checkout, make_checkout

SELECTION = ("--config", "kernels=vector_add,softmax", "gpus=t4,cpu")
ONE_SEED = ("seeds: 5", "seeds: 1")
FEW_CASES = ("edge_cases=cases.EDGE_CASES,", "edge_cases=cases.EDGE_CASES[::24],")
"""What more would find is the validation's business, and takes the interpreter most of a run."""

VIEWS = {"tables", "figures", "report", "track", "verdict", "reproduce"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Checkout:
    """A checkout after one whole run; tests leave its sources as they found them."""
    made = make_checkout(tmp_path_factory.mktemp("run") / "project")
    made.edit("config/config.yaml", *ONE_SEED)
    made.edit("kernels/softmax/declaration.py", *FEW_CASES)
    done = made.snakemake(*SELECTION)
    assert done.returncode == 0, done.stdout + done.stderr
    made.output = done.stdout + done.stderr
    return made


def test_a_run_leaves_documents_tables_figures_report_and_mlflow(finished):
    assert finished.document("t4", "vector_add", "cuda")["status"] in ("ok", "skipped"), "skipped where nvcc is missing"
    for kernel in ("vector_add", "softmax"):
        assert finished.document("t4", kernel, "build")["status"] == "ok"
        for stage in ("validate", "autotune", "benchmark"):
            made = finished.document("cpu", kernel, stage)
            assert (made["status"], made["kind"]) == ("ok", "functional")
    results = finished.root / "results"
    for name in ("report.html", "verdict.txt", "mlflow/mlflow.db", "tables/benchmark.parquet", "tables/coverage.csv"):
        assert (results / name).stat().st_size > 0
    assert list((results / "figures").glob("*.svg"))


def test_a_run_says_first_where_each_gpu_is_and_last_what_came_of_it(finished):
    first, last = finished.output.index("what happens"), finished.output.rindex("results/report.html")
    assert first < last
    assert "cross-compiled for sm_75" in finished.output
    assert "softmax" in finished.output[last - 2000 :]


def test_the_next_run_tracks_what_a_server_that_was_away_has_missed(finished):
    summary = finished.root / "results" / "mlflow" / "tracked.json"
    kept, times = summary.read_text(), (summary.stat().st_atime_ns, summary.stat().st_mtime_ns)
    summary.write_text(json.dumps(json.loads(kept) | {"missed": 1}))
    os.utime(summary, ns=times)
    assert "track" in finished.planned(*SELECTION)
    summary.write_text(kept)
    os.utime(summary, ns=times)


def test_a_second_run_has_nothing_to_do_and_imports_nothing_heavy_to_find_out(finished):
    """A user waits two to three seconds, most of them for Snakemake to start.  What would make it ten is named here."""
    assert finished.planned(*SELECTION) == {}
    words = (sys.executable, "-X", "importtime", "-m", "snakemake", "--cores", "2", "-n", *SELECTION)
    done = finished.run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    packages = {name.partition(".")[0] for name in lines}
    assert {"snakemake", "atlas"} <= packages, "the list is of the process that plans"
    heavy = {"torch", "triton", "kernels", "matplotlib", "seaborn", "mlflow", "scipy"}  # pandas is Snakemake's own
    assert sorted(packages & heavy) == []


def test_touching_sources_runs_nothing(finished):
    for pattern in ("kernels/**/*.py", "workflow/atlas/**/*.py", "config/*.yaml", "workflow/schemas/*.json"):
        for path in finished.root.glob(pattern):
            os.utime(path)
    assert finished.planned(*SELECTION) == {}


def planned_after(finished, *edits):
    """What a dry run would start and what it says, after edits, each (file, old, new); sources are then as before."""
    paths = {finished.root / name for name, _, _ in edits}
    before = {path: path.read_text() if path.exists() else None for path in paths}
    try:
        for name, old, new in edits:
            if old:
                finished.edit(name, old, new)
            else:
                (finished.root / name).write_text(new)
        return finished.told(*SELECTION)
    finally:
        for path, text in before.items():
            path.unlink() if text is None else path.write_text(text)


FORWARD, MASKS = "kernels/softmax/forward.py", "kernels/softmax/masks.py"
DECLARED, PUBLIC = "kernels/softmax/declaration.py", "kernels/softmax/__init__.py"
COMMENT = (FORWARD, "@triton.jit\n", "# A remark.\n@triton.jit\n")
DOCSTRING = (FORWARD, '"""Softmax of each row of a tile, or', '"""Softmax of every row of a tile, or')
LAYOUT = (FORWARD, "    y = torch.empty_like(x)\n", "\n    y = (\n        torch.empty_like(x)\n    )\n")
STAGE = ("workflow/atlas/stages/validate.py", '"""Write the document."""', '"""Write it."""')


@pytest.mark.parametrize("edit", [COMMENT, DOCSTRING, LAYOUT, STAGE], ids=["comment", "docstring", "layout", "stage"])
def test_what_does_not_run_plans_nothing(finished, edit):
    assert planned_after(finished, edit)[0] == {}


def test_a_function_that_moves_to_another_file_plans_nothing(finished):
    text = (finished.root / MASKS).read_text()
    first = text.index("def _unfit(shape, mask):")
    moved = text[first : text.index("\n\n\n", first)]
    edits = [("kernels/softmax/errors.py", "", moved + "\n"), (MASKS, moved + "\n\n\n", ""),
             (MASKS, "\n_MASK_ROWS = ", "\nfrom .errors import _unfit\n\n_MASK_ROWS = ")]  # fmt: skip
    assert planned_after(finished, *edits)[0] == {}


ALL = {"build", "validate", "autotune", "benchmark"}


@pytest.mark.parametrize(
    ("edit", "stages", "reason"),
    [
        (
            (FORWARD, "    row_max = tl.max(m_i, axis=0)\n", "    row_max = tl.max(m_i, axis=0) + 0.0\n"),
            ALL,
            "softmax: forward `online` changed: build, validate, autotune, benchmark",
        ),
        ((DECLARED, "EDGE_CASES[::24]", "EDGE_CASES[::25]"), {"validate"}, "softmax: the cases of validation changed"),
        ((DECLARED, "peers={", 'peers={"x": eager(_call), '), {"benchmark"}, "softmax: the peers changed: benchmark"),
        ((PUBLIC, "return x.clone()", "return +x"), {"validate"}, "softmax: the public function changed"),
        (("workflow/atlas/tuning/strategies/halving.py", "return ", "return +1 and "), {"autotune", "benchmark"},
         "the code of autotune changed: autotune (cpu)"),
    ],
    ids=["a device line", "an edge case", "a peer", "the public function", "a strategy"],
)  # fmt: skip
def test_an_edit_plans_the_jobs_that_depend_on_it_and_the_views_and_says_why(finished, edit, stages, reason):
    jobs, said = planned_after(finished, edit)
    jobs.pop("predict", None)  # of the T4, where what it reads has changed
    assert set(jobs) - VIEWS == stages and VIEWS - {"figures"} <= set(jobs)
    kernels = 2 if "tuning" in edit[0] else 1
    assert {jobs[stage] for stage in stages} == {kernels}
    assert reason in said


def test_editing_a_gpus_block_runs_that_gpus_jobs_and_the_views(finished):
    path = finished.root / "config" / "gpus.yaml"
    before = path.read_text()
    try:
        path.write_text(before.replace("sms: 40", "sms: 41"))
        jobs = finished.planned(*SELECTION)
    finally:
        path.write_text(before)
    assert jobs.pop("build") == 2, "two kernels for the T4; the interpreter's documents stand"
    assert jobs.pop("cuda") == 1, "of the two vector_add has peers in CUDA C++"
    assert set(jobs) == VIEWS | {"predict"}


def test_editing_cuda_sources_builds_them_again(finished):
    path = finished.root / "kernels" / "cuda" / "vector_add.cu"
    before = path.read_text()
    try:
        path.write_text(before + "\n// a remark\n")
        jobs = finished.planned(*SELECTION)
    finally:
        path.write_text(before)
    assert jobs == {"cuda": 1, "reproduce": 1}, "the interpreter's benchmark has no peers in CUDA C++"


def test_editing_how_figures_are_drawn_runs_the_views_behind_them_alone(finished):
    jobs, _ = planned_after(
        finished, ("workflow/atlas/figures/sheet.py", "\nfrom dataclasses", "\nMORE = 1\nfrom dataclasses")
    )
    assert jobs == {}, "which nothing uses"
    jobs, _ = planned_after(
        finished, ("workflow/atlas/stages/figures.py", "    names, anew =", "    print()\n    names, anew =")
    )
    assert set(jobs) == {"figures", "report", "track", "verdict", "reproduce"}


def test_a_committed_record_is_read_and_no_job_makes_it(tmp_path):
    # git gives every file of a clone today's date, so a record must not look like a result that is out of date.
    clone = make_checkout(tmp_path / "clone")
    record = clone.root / "results" / "recorded" / "h200" / "vector_add" / "build.json"
    done = clone.atlas("build", "vector_add", "--gpu", "h200", "--sample", "1")
    assert done.returncode == 0, done.stderr
    record.parent.mkdir(parents=True)
    (clone.root / "results/measured/h200/vector_add/build.json").rename(record)
    jobs = clone.planned("--config", "gpus=h200", "kernels=vector_add")
    assert jobs.pop("build") == jobs.pop("cuda") == 1, "the cross-compilations, which every host makes for itself"
    assert set(jobs) == VIEWS | {"predict"}
