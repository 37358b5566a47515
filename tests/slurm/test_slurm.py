"""The workflow through a real SLURM: all stages, and what goes wrong on a cluster.  ``make test-slurm`` runs it.

Two CPU nodes and one with a GPU, simulated on this host; kernels run in the interpreter.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from datetime import datetime
from pathlib import Path

import pytest
from atlas.results import documents

from tests.workflow.conftest import PRIVATE, PROJECT, Checkout, make_checkout

from .cluster import Cluster, Node, missing, wait_until

pytest.importorskip("snakemake_executor_plugin_slurm", reason="pip install -c constraints.txt '.[slurm]'")
if missing():
    pytest.skip(f"no {', '.join(missing())}: apt-get install slurm-wlm munge", allow_module_level=True)

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(3600)]

GPUS = ("a100", "h100", "h200", "t4")
SELECTION = ("--config", "kernels=vector_add,softmax", "gpus=t4,cpu")
# A cluster without accounting is asked by squeue; a node of the test has two cores.
HERE = ("--workflow-profile", "profiles/slurm", "--slurm-status-command", "squeue", "--max-threads", "2")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A controller, two CPU nodes and one with a GPU."""
    nodes = (Node("c1", "cpu"), Node("c2", "cpu"), Node("g1", "a100", "a100"))
    with Cluster(tmp_path_factory.mktemp("slurm"), nodes) as running:
        yield running


def small(root: Path) -> Checkout:
    """A checkout whose validation is short."""
    made = make_checkout(root)
    made.edit("config/config.yaml", "seeds: 5", "seeds: 1")
    made.edit("kernels/softmax/declaration.py", "edge_cases=cases.EDGE_CASES,", "edge_cases=cases.EDGE_CASES[::24],")
    return made


def through(
    cluster: Cluster, checkout: Checkout, *words: str, minutes: int = 10, log: str = "head"
) -> subprocess.Popen:
    """``snakemake`` with the profile, started; what it says is in ``<log>.log``."""
    inherited = {name: value for name, value in os.environ.items() if name not in (*PRIVATE, "PYTHONPATH")}
    command = [
        sys.executable,
        "-m",
        "snakemake",
        *words,
        *HERE,
        "--default-resources",
        f"runtime={minutes}",
        "mem_mb=2000",
    ]
    with (checkout.root / f"{log}.log").open("w") as output:
        return subprocess.Popen(
            command,
            cwd=checkout.root,
            env={**inherited, **cluster.environment, "PYTHONDONTWRITEBYTECODE": ""},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def said(checkout: Checkout, log: str = "head") -> str:
    return (checkout.root / f"{log}.log").read_text()


VOLATILE = ("seconds", "_us", "date", "journal", "at_seconds", "temperature", "mhz", "power", "throttled")


def lasting(value):
    """A document without what differs from run to run: times, dates, and what was chosen by them."""
    if isinstance(value, dict):
        return {key: lasting(one) for key, one in value.items() if not any(word in key for word in VOLATILE)}
    return [lasting(one) for one in value] if isinstance(value, list) else value


def results(checkout: Checkout) -> dict[str, object]:
    """What the stages of a run found, by file; of what was timed, which problems, and whether they ran."""
    found = {}
    folder = checkout.root / "results" / "measured"
    for path in sorted(folder.rglob("*.json")):
        document = lasting(json.loads(path.read_text()))
        if document["stage"] in ("autotune", "benchmark"):
            rows = document.get("trials") or document.get("rows")
            keys = ("provider", "variant", "direction", "dtype", "sizes", "status")
            document = [document["status"], document["identities"], [[row.get(key) for key in keys] for row in rows]]
        found[str(path.relative_to(folder))] = document
    return found


def test_all_stages_go_through_sbatch_and_find_what_a_local_run_finds(cluster, tmp_path):
    placed, local = small(tmp_path / "placed"), small(tmp_path / "local")
    begin = time.monotonic()
    head = through(cluster, placed, *SELECTION)
    assert head.wait() == 0, said(placed)
    print(f"through SLURM {time.monotonic() - begin:.0f} s")
    jobs = [job for job in cluster.jobs() if job["state"] == "COMPLETED"]
    assert {job["comment"].split("_")[1] for job in jobs} == {"build", "cuda", "cpu"}, "the rest is the head's"
    assert {job["partition"] for job in jobs} == {"cpu"} and {job["node"] for job in jobs} <= {"c1", "c2"}
    begin = time.monotonic()
    done = local.snakemake(*SELECTION)
    assert done.returncode == 0, done.stdout + done.stderr
    print(f"local {time.monotonic() - begin:.0f} s")
    assert results(placed) == results(local)
    assert placed.planned(*SELECTION) == {}, "nothing is due again"
    assert "\nvector_add" in (placed.root / "results/tables/verdicts.csv").read_text()
    tracked = json.loads((placed.root / "results/mlflow/tracked.json").read_text())
    assert tracked, "by the head alone, which runs it as a local rule"


DOCUMENT = "results/measured/t4/slow/build.json"
KERNEL = """'''A kernel that takes until a file `go` is there, the first time.'''
import os, time
from pathlib import Path
if not Path("begun").exists():
    Path("begun.new").write_text(f"{os.getpid()} {os.environ['SLURMD_NODENAME']}")
    Path("begun.new").rename("begun")
    while not Path("go").exists():
        time.sleep(0.5)
raise RuntimeError("no kernel")
"""
SLOW = (DOCUMENT, "--config", "kernels=slow", "gpus=t4")


@pytest.fixture
def slow(tmp_path) -> Checkout:
    """A checkout with one kernel, which begins and then waits."""
    made = make_checkout(tmp_path / "project")
    (made.root / "kernels" / "slow.py").write_text(KERNEL)
    return made


def begun(checkout: Checkout) -> tuple[int, str]:
    """The process and the node of the slow kernel's stage, once it is there."""
    path = checkout.root / "begun"
    wait_until(path.exists, f"no job began: {said(checkout)}", 180)
    pid, node = path.read_text().split()
    return int(pid), node


def there(pid: int) -> bool:
    return (
        Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    )


def made_again(checkout: Checkout) -> bool:
    return "no kernel" in checkout.document("t4", "slow", "build")["reason"]


def test_a_job_whose_node_dies_runs_again_on_another(cluster, slow):
    head = through(cluster, slow, *SLOW)
    _, node = begun(slow)
    cluster.kill_node(node)
    try:
        assert head.wait() == 0, said(slow)
        assert made_again(slow)
        assert {job["node"] for job in cluster.jobs() if "slow" in job["comment"]} == {"c1", "c2"} - {node}
    finally:
        cluster.start_node(node)


def test_a_controller_that_is_started_again_costs_nothing(cluster, slow):
    """Within seconds, as systemd does.

    Without accounting snakemake-executor-plugin-slurm 2.8.0 loses sight of all jobs where nobody answers its question.
    """
    head = through(cluster, slow, *SLOW)
    begun(slow)
    cluster.kill_controller()
    cluster.start_controller()
    (slow.root / "go").touch()
    assert head.wait() == 0, said(slow)
    assert made_again(slow)


def test_a_job_over_its_time_limit_is_ended_and_named_and_the_next_run_makes_it(cluster, slow):
    head = through(cluster, slow, *SLOW, minutes=1)
    pid, _ = begun(slow)
    assert head.wait() != 0
    assert "TIMEOUT" in said(slow)
    wait_until(lambda: not there(pid), "the stage outlives its job", 20)
    again = through(cluster, slow, *SLOW, log="again")
    assert again.wait() == 0, said(slow, "again")
    assert made_again(slow)


def test_after_the_head_is_killed_the_next_one_cancels_what_it_left_and_goes_on(cluster, slow):
    head = through(cluster, slow, *SLOW)
    pid, _ = begun(slow)
    head.send_signal(signal.SIGKILL)
    head.wait()
    assert there(pid), "the job is SLURM's"
    unlocked = slow.run(sys.executable, "-m", "snakemake", "--unlock")
    assert unlocked.returncode == 0, unlocked.stdout + unlocked.stderr
    again = through(cluster, slow, *SLOW, log="again")
    assert again.wait() == 0, said(slow, "again")
    assert "left by a run that was killed" in said(slow, "again")
    assert not there(pid)
    assert made_again(slow)


ON_NODES = """#!/bin/sh
[ -n "$SLURMD_NODENAME" ] || exit 1
echo "$3 $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES" >> started
exec {python} "$@"
"""
TELLING = """'''A kernel that says for which GPU and under which Python its stages import it.'''
import sys
with open("told", "a") as told:
    print(sys.argv[sys.argv.index("--gpu") + 1], sys.executable, file=told)
raise RuntimeError("no kernel")
"""


def environment_with_these_packages(folder: Path) -> Path:
    """A virtual environment; returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "these.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def test_jobs_of_a_gpu_run_under_its_own_interpreter_which_the_head_need_not_have(cluster, tmp_path):
    """A block names one that works on nodes alone; the run's config names the other, of a GPU that no node has."""
    made = make_checkout(tmp_path / "project")
    (made.root / "kernels" / "telling.py").write_text(TELLING)
    pythons = {gpu: environment_with_these_packages(tmp_path / gpu) for gpu in ("a100", "t4")}
    on_nodes = tmp_path / "on-nodes"
    on_nodes.write_text(ON_NODES.format(python=pythons["a100"]))
    on_nodes.chmod(0o755)
    made.edit("config/gpus.yaml", "\na100:\n", f"\na100:\n  python: {on_nodes}\n")
    stages = ("a100/telling/build", "a100/telling/validate", "t4/telling/build")
    wanted = [f"results/measured/{name}.json" for name in stages]
    config = ("--config", "kernels=telling", "gpus=a100,t4,cpu", f"python={{t4: {pythons['t4']}}}")
    head = through(cluster, made, *wanted, *config)
    assert head.wait() != 0, "the node of the A100 has none"
    assert "this host shows no GPU" in (made.root / "results/logs/a100/telling/validate.log").read_text()
    told = {tuple(line.split()) for line in (made.root / "told").read_text().splitlines()}
    assert told == {(gpu, str(python)) for gpu, python in pythons.items()}, "stages and their workers"
    started = {tuple(line.split(" ")) for line in (made.root / "started").read_text().splitlines()}
    (build, validate) = sorted(started)
    assert build[0] == "build" and build[1] in ("c1", "c2") and build[2] == ""
    assert validate == ("validate", "g1", "0"), "the board that SLURM gave the job"


STAGES = ("validate", "autotune", "benchmark")
KERNELS = ("softmax", "rms_norm", "layer_norm", "cross_entropy", "reduction", "embedding", "rope", "dropout")
_SHORTER = float(os.environ.get("KERNEL_ATLAS_SHORTER", "1"))


def test_eight_kernels_keep_four_partitions_busy(tmp_path):
    """Stages sleep as long as the H200's record says they took; one of the partitions is reached by ``gres`` alone."""
    made = make_checkout(tmp_path / "project")
    shutil.copy(Path(__file__).with_name("stub.py"), made.root / "workflow/atlas/__main__.py")
    made.edit("config/gpus.yaml", "cluster: {gpu: 1, gpu_model: t4}", "cluster: {gres: 'gpu:t4:1'}")

    def took(name: str) -> float:
        return documents.load(PROJECT / "results/recorded/h200" / name)["seconds"] / _SHORTER

    seconds = {stage: {kernel: took(f"{kernel}/{stage}.json.xz") for kernel in KERNELS} for stage in ("build", *STAGES)}
    seconds |= {"survey": {"": took("survey.json.xz")}, "cuda": {}}
    (made.root / "seconds.json").write_text(json.dumps(seconds))
    ideal = seconds["survey"][""] + sum(seconds[stage][kernel] for stage in STAGES for kernel in KERNELS)
    nodes = [Node("c1", "cpu", cpus=8), *(Node(f"on-{gpu}", gpu, gpu, 2) for gpu in GPUS)]
    wanted = [f"results/measured/{gpu}/{kernel}/benchmark.json" for gpu in GPUS for kernel in KERNELS]
    with Cluster(tmp_path / "slurm", nodes) as cluster:
        begin = time.monotonic()
        head = through(cluster, made, *wanted, "--config", f"kernels={','.join(KERNELS)}", f"gpus={','.join(GPUS)}")
        assert head.wait() == 0, said(made)
        wall = time.monotonic() - begin
        lengths = dict.fromkeys(GPUS, 0.0)
        for job in cluster.jobs():
            if job["partition"] in lengths:
                begun, ended = (datetime.fromisoformat(job[key]) for key in ("begin", "end"))
                lengths[job["partition"]] += (ended - begun).total_seconds()
    schedule = max(lengths.values())  # a partition has one GPU, and its jobs in any order take what they take
    print(f"makespan {wall:.0f} s: {wall / schedule:.3f} times the ideal schedule of the jobs, {schedule:.0f} s;")
    print(f"{wall / ideal:.3f} times that of the stages alone, {ideal:.0f} s: the rest is how jobs start on this host")
    stages = [json.loads(line) for line in (made.root / "stages.log").read_text().splitlines()]
    for stage, gpu, _, device, node, *_ in stages:
        expected = ("c1", "") if stage in ("build", "cuda") else (f"on-{gpu}", "0")
        assert (node, device) == expected, "CPU stages on CPU nodes, the others on their GPU's"
    assert wall <= 1.15 * schedule
