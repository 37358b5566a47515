"""What makes a job due again, asked of a settled plan: no Snakemake is started."""

from types import SimpleNamespace

import pytest
from atlas import catalog
from atlas.host import gpus
from atlas.plan import jobs as plan
from atlas.reading.config import CONFIG_FILE, load_yaml


@pytest.fixture
def settled(monkeypatch):
    """``settled(devices, cores=…)``: the plan where these GPUs are, separated by ``;``."""

    def settle(devices="NVIDIA H200", cores=None, gpu_limit=None, **config):
        for name in (gpus.PLACES_VARIABLE, gpus.LIMIT_VARIABLE):
            monkeypatch.setenv(name, "")  # so that what settling puts there goes with the test
            monkeypatch.delenv(name)
        monkeypatch.setenv("KERNEL_ATLAS_DEVICES", devices)
        return plan.settle(load_yaml(CONFIG_FILE) | config, cores, gpu_limit)

    return settle


def job(kernel="softmax", gpu="h200"):
    return SimpleNamespace(kernel=kernel, gpu=gpu)


@pytest.mark.parametrize(
    ("changed", "due"),
    [
        ("forward.online", {"build", "validate", "autotune", "benchmark"}),
        ("peers", {"benchmark"}),
        ("cases", {"validate"}),
    ],
)
def test_a_job_is_due_when_what_its_stage_depends_on_in_the_kernel_changes(settled, monkeypatch, changed, due):
    """What the identities are of is the tests' of :mod:`atlas.identity`; here, which stage asks for which."""
    today = dict.fromkeys(("forward.one_pass", "forward.online", "inputs", "sweep", "cases", "peers"), "1")

    def asked():
        here = settled(kernels=["softmax"])
        stages = ("build", "validate", "autotune", "benchmark")
        return {stage: here.identity(stage)(job()) for stage in stages}

    monkeypatch.setattr(catalog, "identities", lambda kernel: dict(today))
    before = asked()
    today[changed] = "2"
    after = asked()
    assert {stage for stage in before if before[stage] != after[stage]} == due


def test_a_benchmark_on_a_gpu_reads_the_survey_and_one_on_the_interpreter_has_none(settled):
    reads = settled().earlier("survey", "build", "autotune")
    folder = "results/measured/h200"
    assert reads(job()) == [f"{folder}/survey.json", f"{folder}/softmax/build.json", f"{folder}/softmax/autotune.json"]
    assert reads(job(gpu="cpu")) == ["results/measured/cpu/softmax/autotune.json"]


def places(state):
    return {"h200": gpus.Place(gpus.HERE, device_name="NVIDIA H200", count=1, state=state)}


def test_another_driver_or_power_cap_of_a_gpu_that_is_here_makes_its_jobs_due(settled):
    here = settled()
    states = set()
    for state in ("580.1 700 W", "580.2 700 W", "580.2 500 W"):
        states.add(plan.Plan(here.config, here.kernels, here.blocks, places(state)).device_state(job()))
    assert len(states) == 3


def test_any_edit_to_a_gpu_s_block_makes_its_own_jobs_due_and_no_other_s(settled):
    here = settled()
    digest = here.block_digest(job())
    edited = {**here.blocks, "h200": {**here.blocks["h200"], "memory_gib": 1}}
    after = plan.Plan(here.config, here.kernels, edited, here.places)
    assert after.block_digest(job()) != digest
    assert after.block_digest(job(gpu="t4")) == here.block_digest(job(gpu="t4"))
    assert plan.Plan(here.config, here.kernels, dict(here.blocks), here.places).block_digest(job()) == digest


@pytest.mark.parametrize(
    ("devices", "cores", "gpu_limit", "share"),
    [
        (4, 16, 4, 3),  # four work at a time, beside one build
        (2, 16, 8, 5),  # no more can work than there are
        (4, 16, None, 1024),  # one at a time, which takes all there are
    ],
)
def test_gpus_that_work_at_a_time_share_the_cores(settled, devices, cores, gpu_limit, share):
    made = settled(";".join(["NVIDIA H200"] * devices), cores, gpu_limit)
    assert made.threads.gpu == made.worker_threads(job()) == share
    assert made.worker_threads(job(gpu="cpu")) == 1, "the interpreter keeps one core busy"


def test_a_job_goes_before_those_that_wait_for_it(settled):
    made = settled("NVIDIA H200")
    asked = {stage: made.priority(stage)(job()) for stage in ("build", "autotune", "benchmark")}
    assert asked["build"] > asked["autotune"] > asked["benchmark"] > 0
    assert made.priority("survey")(SimpleNamespace(gpu="h200")) > asked["benchmark"]


def test_a_job_takes_one_gpu_and_one_on_the_interpreter_none(settled):
    asked = settled().device_resources()
    assert {gpu: asked["gpu"](job(gpu=gpu)) for gpu in ("h200", "cpu")} == {"h200": 1, "cpu": None}


def test_a_kernel_that_calls_another_waits_for_its_tuning_where_this_run_tunes_it(settled):
    chosen = ["matmul", "matmul_epilogue"]
    epilogue = job("matmul_epilogue")
    assert settled(kernels=chosen).called(epilogue) == ["results/measured/h200/matmul/autotune.json"]
    assert settled(kernels=chosen, devices="").called(epilogue) == [], "out of reach"
    assert settled(kernels=chosen).called(job("matmul_epilogue", "cpu")) == []


def test_predictions_and_the_builds_they_wait_for_begin_early_and_run_beside_validations(settled):
    made = settled(devices="")
    builds = [made.priority("build")(job(gpu=gpu)) for gpu in ("a100", "t4")]
    assert min(builds) > made.priority("predict")(SimpleNamespace()) > made.priority("validate")(job(gpu="cpu"))


def test_proofs_made_by_hand_and_records_are_inputs_of_the_views(settled, tmp_path, monkeypatch):
    made = settled()
    monkeypatch.chdir(tmp_path)
    records = {"h200/softmax/benchmark.json.xz", "h200/softmax/build.json", "h200@lab2/softmax/benchmark.json.xz"}
    named = {"results/measured/h200/proof/overhead.json"} | {f"results/recorded/{name}" for name in records}
    others = {"results/measured/h300/proof/overhead.json", "results/recorded/h200/notes.txt"}
    for name in named | others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    documents = set(made.documents())
    assert named <= documents and not others & documents
    assert made.predictions() and not documents.intersection(made.predictions()), "which the tables alone read"
