"""One full run on the interpreter, two kernels and one GPU that is elsewhere; then what edits make of it."""

import os
import resource

import pytest

from .conftest import Checkout, make_checkout

SELECTION = ("--config", "kernels=vector_add,softmax", "gpus=t4,cpu")
ONE_SEED = ("seeds: 5", "seeds: 1")
FEW_CASES = ("edge_cases=_EDGE_CASES,", "edge_cases=_EDGE_CASES[::24],")
"""What more would find is the validation's business, and takes the interpreter most of a run."""

VIEWS = {"tables", "figures", "report", "track", "verdict", "reproduce"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Checkout:
    """A checkout after one whole run; tests leave its sources as they found them."""
    made = make_checkout(tmp_path_factory.mktemp("run") / "project")
    made.edit("config/config.yaml", *ONE_SEED)
    made.edit("kernels/softmax.py", *FEW_CASES)
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


def processor_seconds(command) -> float:
    """What ``command()`` and the processes it waits for take of the processor, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_second_run_has_nothing_to_do_and_knows_it_as_soon_as_snakemake_can(finished):
    def plan():
        assert finished.planned(*SELECTION) == {}

    # A user waits two to three seconds, most of them for Snakemake itself to start. Beside that start, since a busy
    # host's processor seconds are worth less; importing torch alone (a kernel read for its plan) would break it.
    start = processor_seconds(lambda: finished.snakemake("--version"))
    assert min(processor_seconds(plan) for _ in range(2)) < 2 * start


def test_touching_sources_runs_nothing(finished):
    for pattern in ("kernels/*.py", "workflow/atlas/**/*.py", "config/*.yaml", "workflow/schemas/*.json"):
        for path in finished.root.glob(pattern):
            os.utime(path)
    assert finished.planned(*SELECTION) == {}


def test_editing_a_kernel_runs_its_jobs_and_the_views_and_nothing_else(finished):
    path = finished.root / "kernels" / "softmax.py"
    before = path.read_text()
    try:
        path.write_text(before + "\n# a remark\n")
        jobs = finished.planned(*SELECTION)
    finally:
        path.write_text(before)
    assert {name: jobs.pop(name) for name in ("build", "validate", "autotune", "benchmark")} == {
        "build": 1,
        "validate": 1,
        "autotune": 1,
        "benchmark": 1,
    }
    assert set(jobs) == VIEWS


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
    assert set(jobs) == VIEWS


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
    path = finished.root / "workflow" / "atlas" / "stages" / "figures.py"
    before = path.read_text()
    try:
        path.write_text(before + "\n# a remark\n")
        jobs = finished.planned(*SELECTION)
    finally:
        path.write_text(before)
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
    assert set(jobs) == VIEWS
