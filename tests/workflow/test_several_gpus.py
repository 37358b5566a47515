"""Several GPUs of one host under Snakemake: who gets which, how many cores each, and what is due again."""

import json
import shutil

import pytest
from atlas.host import gpus
from atlas.plan import sharing
from atlas.plan.sharing import ALL

from .conftest import PROJECT, Checkout, make_checkout

# In the place of NVML: two boards, and a driver whose version is a file's content.
NVML = """
import pathlib, sys
from fake_nvml import Board, FakeNvml
driver = pathlib.Path(__file__).with_name("driver").read_text()
sys.modules[__name__] = FakeNvml(Board("GPU-a"), Board("GPU-b"), driver=driver)
"""

# In the place of every stage: takes its lease and writes what it was given.  Two autotunes wait for one another, so
# that they end only if they run at the same time.
STAGE = """
import json, os, pathlib, time
from . import frame

NAME = __name__.rpartition(".")[2]

def add_arguments(parser):
    frame.add_common_arguments(parser, kernel=NAME != "survey")
    for option in ("jobs", "seeds", "strategy", "budget-seconds", "trial-timeout-seconds", "min-seconds",
                   "max-samples"):
        parser.add_argument(f"--{option}")

def run(arguments):
    job = frame.job(NAME, arguments)
    if NAME == "build":
        return write(job, {})
    began = time.time()
    with frame.leased(job) as lease:
        if NAME == "autotune":
            meeting = pathlib.Path("meeting")
            meeting.mkdir(exist_ok=True)
            (meeting / job.kernel).touch()
            end = time.monotonic() + 400
            while len(list(meeting.iterdir())) < 2 and time.monotonic() < end:
                time.sleep(0.02)
            assert time.monotonic() < end, "nobody else tunes"
        write(job, {"uuid": lease.uuid, "sees": os.environ["CUDA_VISIBLE_DEVICES"],
                    "limit": os.environ["KERNEL_ATLAS_GPUS"], "jobs": arguments.jobs, "began": began})

def write(job, fields):
    job.output.parent.mkdir(parents=True, exist_ok=True)
    job.output.write_text(json.dumps(fields))
"""

KERNELS = ("vector_add", "softmax")
BRIEF = "results/measured/h200/dropout/validate.json"
TARGETS = [f"results/measured/h200/{kernel}/benchmark.json" for kernel in KERNELS]


@pytest.mark.parametrize(
    ("cores", "limit", "devices", "gpu", "build"),
    [
        (8, 1, 8, ALL, ALL),  # the default profile's one GPU at a time
        (16, 2, 2, 5, 6),  # two GPUs, and builds beside them
        (16, 3, 8, 4, 4),
        (32, 4, 4, 6, 8),
        (128, 8, 8, 12, 16),  # eight GPUs want two builds at a time
        (64, 64, 8, 6, 8),  # eight are here, whatever is allowed
        (8, 8, 8, 1, 1),
        (4, 8, 8, 1, 1),
        (8, 8, 1, ALL, ALL),
        (8, 8, 0, ALL, ALL),  # the interpreter's
        (8, None, 8, ALL, ALL),
        (None, 8, 8, ALL, ALL),  # a report, a lint, or a cluster, where max-threads is the limit
    ],
)
def test_each_gpu_gets_its_share_of_the_cores_and_builds_get_one(cores, limit, devices, gpu, build):
    places = {"h200": gpus.Place(gpus.HERE, "NVIDIA H200", devices), "cpu": gpus.Place(gpus.HERE)}
    assert sharing.threads(cores, limit, places) == sharing.Threads(gpu, build)


def test_the_share_is_of_snakemakes_own_cores_and_gpus(checkout):
    words = ("-n", "-p", "--cores", "10", "--resources", "gpu=4", "--config", "kernels=softmax", "gpus=h200")
    done = checkout.snakemake(*words, devices=";".join(["NVIDIA H200"] * 8))
    assert "atlas autotune softmax --gpu h200 --jobs 2 " in done.stdout + done.stderr
    assert "atlas validate softmax --gpu h200 --jobs 2 " in done.stdout + done.stderr
    assert "atlas benchmark softmax --gpu h200 --jobs 2 " in done.stdout + done.stderr


def test_a_job_on_the_interpreter_takes_one_core_since_kernels_run_beside_one_another(checkout):
    done = checkout.snakemake("-n", "-p", "--cores", "8", "--config", "kernels=softmax", "gpus=cpu")
    assert "atlas validate softmax --gpu cpu --jobs 1 " in done.stdout + done.stderr
    assert "atlas autotune softmax --gpu cpu --jobs 1 " in done.stdout + done.stderr
    assert "atlas benchmark softmax --gpu cpu --jobs 1 " in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("cores", "kernels", "jobs"),
    [
        ("8", "softmax", 4),  # two builds, for GPUs that are elsewhere: neither leaves cores idle
        ("2", "softmax,vector_add,dropout", 1),  # six of few configs: two at a time are sooner done
    ],
)
def test_builds_for_gpus_elsewhere_share_the_cores(checkout, cores, kernels, jobs):
    done = checkout.snakemake("-n", "-p", "--cores", cores, "--config", f"kernels={kernels}", "gpus=a100,t4")
    assert f"atlas build softmax --gpu t4 --jobs {jobs} " in done.stdout + done.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Checkout:
    """A checkout with stages of no substance on a host with two boards, after a run on both."""
    made = make_checkout(tmp_path_factory.mktemp("several") / "project")
    for stage in ("survey", "build", "validate", "autotune", "benchmark"):
        (made.root / "workflow" / "atlas" / "stages" / f"{stage}.py").write_text(STAGE)
    shutil.copy(PROJECT / "tests" / "core" / "fake_nvml.py", made.root)
    (made.root / "pynvml.py").write_text(NVML)
    (made.root / "driver").write_text("580.1")
    for kernel, seconds in {"dropout": 1, **dict.fromkeys(KERNELS, 500)}.items():  # as of an earlier run
        told = made.root / f"results/benchmarks/h200/{kernel}/validate.tsv"
        told.parent.mkdir(parents=True)
        told.write_text(f"s\th:m:s\n{seconds}\t0:00:00\n")
    done = made.snakemake("--resources", "gpu=2", "--", BRIEF, *TARGETS, devices=None)
    assert done.returncode == 0, done.stdout + done.stderr
    made.output = done.stdout + done.stderr
    return made


def test_two_gpus_of_one_host_are_used_at_the_same_time(finished):
    made = [
        json.loads((finished.root / f"results/measured/h200/{kernel}/autotune.json").read_text()) for kernel in KERNELS
    ]
    assert sorted(one["uuid"] for one in made) == sorted(one["sees"] for one in made) == ["GPU-a", "GPU-b"]
    assert [(one["limit"], one["jobs"]) for one in made] == [("2", "1"), ("2", "1")]
    assert "2 x NVIDIA H200" in finished.output


def test_the_job_that_took_least_begins_last(finished):
    paths = [
        finished.root / BRIEF,
        *(finished.root / f"results/measured/h200/{name}/validate.json" for name in KERNELS),
    ]
    brief, *others = (json.loads(path.read_text())["began"] for path in paths)
    assert brief > max(others)


def test_other_numbers_of_cores_and_gpus_are_no_reason_to_measure_again(finished):
    assert finished.planned("--cores", "16", "--resources", "gpu=1", "--", *TARGETS, devices=None) == {}


def test_another_driver_is_a_reason_to_time_again_and_not_to_validate_or_build(finished):
    driver = finished.root / "driver"
    driver.write_text("590.2")
    try:
        jobs = finished.planned("--", *TARGETS, devices=None)
    finally:
        driver.write_text("580.1")
    assert jobs == {"survey": 1, "autotune": 2, "benchmark": 2}
    assert finished.planned("--", *TARGETS, devices=None) == {}
