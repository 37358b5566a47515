"""``snakemake --config workload=calls.json``: these jobs and no others, in folders of their own."""

import json

import pytest

from tests.workflow.conftest import make_checkout

CASES = [
    {"kernel": "softmax", "dtype": "fp32", "sizes": {"m": 5, "n": 7}},
    {"kernel": "vector_add", "dtype": "fp32", "sizes": {"n": 9}},
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout with a workload of two kernels, which no test edits."""
    found = make_checkout(tmp_path_factory.mktemp("run") / "project")
    (found.root / "mine.json").write_text(json.dumps({"format": "kernel-atlas calls", "version": 1, "cases": CASES}))
    return found


def test_its_kernels_alone_get_jobs(checkout):
    jobs = checkout.planned("--config", "workload=mine.json", "gpus=cpu,h200")
    assert (jobs["validate"], jobs["autotune"], jobs["benchmark"], jobs["build"]) == (2, 2, 2, 2)
    assert checkout.planned("--config", "workload=mine.json", "gpus=cpu", "kernels=softmax")["autotune"] == 1


def test_a_gpu_that_is_here_gets_every_stage(checkout):
    jobs = checkout.planned("--config", "workload=mine.json", "gpus=h200", devices="NVIDIA H200")
    assert jobs["survey"] == 1 and jobs["autotune"] == jobs["build"] == 2


def test_what_cannot_be_is_said_in_a_sentence(checkout):
    for words, said in (
        (("workload=nowhere.json",), "nowhere.json: no such file of calls"),
        (("workload=mine.json", "kernels=matmul"), "the workload comes to no case of matmul"),
        (("workload=7",), "is no path of a file of calls"),
    ):
        done = checkout.snakemake("-n", "--config", *words)
        assert done.returncode != 0 and said in done.stdout + done.stderr


def test_a_run_leaves_the_ordinary_results_as_they_are_and_changed_counts_tune_nothing_anew(checkout):
    ordinary = ("--config", "gpus=cpu", "kernels=vector_add")
    mine = ("--config", "workload=mine.json", "gpus=cpu", "kernels=vector_add")
    target = "results/measured/cpu/vector_add/autotune.json"
    before = checkout.planned(*ordinary)
    done = checkout.snakemake(*mine, "--", target)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (checkout.root / "results").exists(), "what a workload makes has folders of its own"
    document = json.loads((checkout.root / "workloads" / "mine" / target).read_text())
    assert {str(one["sizes"]) for one in document["trials"]} == {"{'n': 9}"}
    assert checkout.planned(*ordinary) == before
    calls = checkout.root / "mine.json"
    calls.write_text(calls.read_text().replace('"n": 9}', '"n": 9}, "count": 3'))
    jobs = checkout.planned(*mine)
    assert "autotune" not in jobs and "validate" not in jobs
    calls.write_text(calls.read_text().replace('"n": 9}', '"n": 10}'))
    assert checkout.planned(*mine)["autotune"] == 1
