"""Snakemake killed outright in the middle of a job: the job ends with it, and what a user would type goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DOCUMENT = "results/measured/t4/slow/build.json"
RUN = (DOCUMENT, "--config", "kernels=slow", "gpus=t4")

KERNEL = f'''"""A kernel whose stage leaves half a document, starts a worker and hangs, the first time."""
import os, subprocess, time
from pathlib import Path
if not Path("pids").exists():
    Path({DOCUMENT!r}).parent.mkdir(parents=True, exist_ok=True)
    Path({DOCUMENT!r}).write_text("{{")
    # Of a session of its own: no signal to the stage's group reaches it.
    worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path("pids.new").write_text(f"{{os.getpid()}} {{worker.pid}}")
    Path("pids.new").rename("pids")
    time.sleep(600)
raise RuntimeError("no kernel")
'''


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(question, seconds: float) -> bool:
    """Whether the answer becomes true within so many seconds."""
    end = time.monotonic() + seconds
    while not question() and time.monotonic() < end:
        time.sleep(0.1)
    return bool(question())


@pytest.fixture
def killed(checkout):
    """A checkout whose Snakemake was killed while its one job was at work; and the job's processes."""
    (checkout.root / "kernels" / "slow.py").write_text(KERNEL)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "KERNEL_ATLAS_DEVICES": "",
        "PYTHONPATH": f"{checkout.root / 'workflow'}{os.pathsep}{checkout.root}",
    }
    words = [sys.executable, "-m", "snakemake", "--cores", "2", *RUN]
    run = subprocess.Popen(
        words, cwd=checkout.root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    pids = checkout.root / "pids"
    try:
        assert wait_until(pids.exists, 400), "the stage never came to its kernel"
        processes = [int(pid) for pid in pids.read_text().split()]
    finally:
        run.kill()
        run.wait()
    yield checkout, processes
    for pid in filter(alive, processes):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_after_snakemake_is_killed_its_jobs_are_gone_and_unlock_and_the_plain_command_go_on(killed):
    checkout, processes = killed
    assert wait_until(lambda: not any(map(alive, processes)), 240), "a stage or its worker outlives its run"
    refused = checkout.snakemake(*RUN)
    assert refused.returncode and "--unlock" in refused.stdout + refused.stderr, "the lock is Snakemake's own"
    # As the documentation says: nothing but --unlock, and nothing added to the command.
    unlocked = checkout.run(sys.executable, "-m", "snakemake", "--unlock")
    assert unlocked.returncode == 0, unlocked.stdout + unlocked.stderr
    again = checkout.snakemake(*RUN)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "no kernel" in checkout.document("t4", "slow", "build")["reason"], "the half document was made again"


def test_a_stage_whose_run_is_over_does_not_begin(checkout):
    over = subprocess.Popen(["true"])
    over.wait()
    checkout.environment["KERNEL_ATLAS_RUN"] = f"{os.uname().nodename}:{over.pid}"
    done = checkout.atlas("verdict")
    assert done.returncode == 2 and "the run that started this" in done.stderr and "has ended" in done.stderr
    checkout.environment["KERNEL_ATLAS_RUN"] = f"another-host:{over.pid}"
    assert "has ended" not in checkout.atlas("verdict").stderr


@pytest.mark.parametrize("profile", ["default", "slurm", "kubernetes"])
def test_every_profile_makes_again_what_a_killed_run_was_at(checkout, profile):
    import yaml

    settings = yaml.safe_load((checkout.root / "profiles" / profile / "profile.yaml").read_text())
    assert settings["rerun-incomplete"] is True
