"""Processes forked by a server: what they are like, that they end with their owner, and when none is forked."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forking_targets as targets
import pytest
from atlas import cli
from atlas.host import interpreters
from atlas.workers import forking
from atlas.workers.process import NOTHING, TORCH, TRITON, Process

QUICK_TORCH = """
import os, threading, time
with open(os.environ["IMPORTS"], "a") as file:
    file.write(f"{os.getpid()}\\n")
class cuda:
    @staticmethod
    def is_initialized():
        return INITIALIZED
if THREAD:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
def set_num_threads(count):
    pass
"""


@pytest.fixture
def script(tmp_path):
    """Start a script of the targets, where torch is a small module that counts its imports."""

    def start(name, *words, initialized=False, thread=False):
        text = QUICK_TORCH.replace("INITIALIZED", str(initialized)).replace("THREAD", str(thread))
        (tmp_path / "torch.py").write_text(text)
        path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        environment = {key: value for key, value in os.environ.items() if key != forking.VARIABLE}
        environment |= {"PYTHONPATH": path, "IMPORTS": str(tmp_path / "imports")}
        code = f"import sys, forking_targets as t, atlas.workers.forking as f; sys.exit({name})"
        return subprocess.Popen(
            [sys.executable, "-c", code, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    return start


def imports(tmp_path):
    return (tmp_path / "imports").read_text().splitlines()


def tell(target, **how):
    with Process(target, **how) as process:
        process.start()
        return process.receive(120)


def gone(pids, seconds=240):
    """Whether none of the processes runs, after some time."""
    until = time.monotonic() + seconds
    while any(_alive(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_process_is_its_owners_in_all_but_what_is_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAKEN", "1")
    found = tell(targets.describe, name="atlas-test", environment={"GIVEN": "2", "TAKEN": None})
    assert found == {
        "modules": [],
        "threads": 1,
        "folder": str(tmp_path),
        "arguments": sys.argv,
        "variables": {"GIVEN": "2", "TAKEN": None, "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS")},
        "name": "atlas-test",
    }


def test_a_process_with_torch_has_one_thread_and_no_module_of_the_project():
    found = tell(targets.describe, imported=TORCH)
    assert (found["modules"], found["threads"]) == (["torch"], 1)


def test_triton_is_imported_to_interpret_or_to_compile_as_the_environment_says():
    assert tell(targets.interprets, imported=TRITON, environment={"TRITON_INTERPRET": "1"}) == "InterpretedFunction"
    assert tell(targets.interprets, imported=TRITON, environment={"TRITON_INTERPRET": None}) == "JITFunction"


def test_torch_uses_the_threads_that_the_environment_allows_and_no_two_processes_draw_the_same():
    found = [tell(targets.threads_of_torch, imported=TORCH, environment={"OMP_NUM_THREADS": n}) for n in ("1", "3")]
    assert [threads for threads, _ in found] == [1, 3]
    assert found[0][1] != found[1][1]


def test_what_a_worker_started_is_killed_with_it():
    process = Process(targets.sleep_with_a_child, imported=NOTHING)
    process.start()
    pids = process.receive(60)
    assert all(map(_alive, pids))
    process.kill()
    assert gone(pids)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_a_worker_ends_with_its_owner_however_that_ends(script, end):
    owner = script("t.owner()")
    pids = list(map(int, owner.stdout.readline().split()))
    assert all(map(_alive, pids))
    owner.send_signal(end)
    assert gone(pids)
    owner.wait()


def test_all_ends_with_the_server(script):
    owner = script("t.owner()")
    worker, below = map(int, owner.stdout.readline().split())
    server = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(server, signal.SIGKILL)
    assert gone([worker])
    owner.kill()
    owner.wait()
    os.kill(below, signal.SIGKILL)


@pytest.mark.parametrize("unfit", [{"thread": True}, {"initialized": True}], ids=["threads", "a device's context"])
def test_a_server_that_is_not_fit_to_be_forked_starts_a_fresh_python(script, tmp_path, unfit):
    done = script("t.described()", **unfit)
    said, wrong = done.communicate(timeout=240)
    assert "'modules': []" in said and "'threads': 1" in said, wrong
    assert len(imports(tmp_path)) == 1, "the server's own"


def test_a_fit_server_forks(script, tmp_path):
    said, wrong = script("t.described()").communicate(timeout=240)
    assert "'modules': ['torch']" in said, wrong


def test_a_run_imports_torch_once_for_all_its_commands_and_hands_their_output_and_status_on(script, tmp_path):
    said, _ = script("t.run()").communicate(timeout=240)
    assert [line.strip() for line in said.splitlines()] == ["3", "0 hello", "0 again"]
    assert len(imports(tmp_path)) == 1


def test_a_command_outside_a_run_works_alone(script, tmp_path):
    for _ in range(2):
        done = script("f.command(t.act, ['say', 'alone'])")
        assert done.communicate(timeout=240)[0] == "alone\n" and done.returncode == 0
    assert len(imports(tmp_path)) == 2


def test_a_server_of_another_checkout_or_python_is_not_asked(monkeypatch):
    name, *serves = forking._mine().address.split("|")
    assert serves == forking._serves()
    monkeypatch.setenv(forking.VARIABLE, "|".join((name, *serves)))
    assert forking.in_a_run()
    for other in (["/other", serves[1]], [serves[0], "/other"]):
        monkeypatch.setenv(forking.VARIABLE, "|".join((name, *other)))
        assert not forking.in_a_run()
    monkeypatch.setenv(forking.VARIABLE, "|".join(("gone", *serves)))  # of another host
    assert not forking.in_a_run()


def test_signals_reach_a_command_and_its_end_by_one_is_seen(script):
    waiting = script("f.command(t.act, ['wait'])")
    waiting.stdout.readline()
    waiting.terminate()
    assert waiting.wait(240) == 7
    killed = script("f.command(t.act, ['kill'])")
    assert killed.wait(240) == -signal.SIGKILL


def test_a_command_whose_process_was_started_is_killed_with_it(script):
    waiting = script("f.command(t.act, ['wait'])")
    pid = int(waiting.stdout.readline())
    waiting.kill()
    assert gone([pid])
    waiting.wait()


def test_a_command_of_a_gpu_that_interprets_begins_with_a_triton_that_does(monkeypatch):
    begun = []
    monkeypatch.setattr(forking, "in_a_run", lambda: True)
    monkeypatch.setattr(forking, "command", lambda main, words, *how: begun.append(how))
    monkeypatch.setenv(interpreters.VARIABLE, "")
    monkeypatch.setenv(forking.INTERPRETED, "cpu")
    for gpu in ("cpu", "h200"):
        monkeypatch.setattr(sys, "argv", ["atlas", "validate", "softmax", "--gpu", gpu])
        cli.command()
    assert begun == [(forking.TRITON, {"TRITON_INTERPRET": "1"}), (forking.TORCH,)]
