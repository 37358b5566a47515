"""When the extension in C++ is built, and what that does to a program whose calls go on meanwhile."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
from atlas.operators import building, native
from atlas.operators.native import Extension

CPU = torch.device("cpu")


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def auto(monkeypatch):
    monkeypatch.setenv(native.VARIABLE, "auto")


def compiler_that(tmp_path, does):
    """A script in the place of g++; ``$out`` is the file that it is to write."""
    script = tmp_path / "g++"
    script.write_text(f'#!/bin/sh\nfor word; do [ "$last" = -o ] && out="$word"; last="$word"; done\n{does}\n')
    script.chmod(0o755)
    return str(script)


def ended(pid):
    """Whether the process is no more, or waits to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def until(condition, seconds=240):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it does not happen"
        time.sleep(0.05)


def test_the_first_call_does_not_wait_for_the_compiler(monkeypatch, auto):
    built, used, extension = threading.Event(), [], Extension()
    monkeypatch.setattr(native, "build", built.wait)
    monkeypatch.setattr(native, "load", lambda path: path)
    monkeypatch.setattr(extension, "_use", lambda module, keys, stream: used.append(module))
    extension.wanted(CPU)  # for ever, if it waited
    assert not used and extension.reason == "it is being built"
    extension.wanted(CPU)  # which starts nothing more
    built.set()
    extension._started.join()
    assert len(used) == 1 or "driver" in extension.reason  # a machine without a GPU has no stream to ask for


@pytest.mark.parametrize(
    "error", [building.Unbuilt("no compiler"), OSError("disc"), ImportError("libc"), KeyError("x")]
)
def test_whatever_fails_beside_a_program_is_a_reason_and_no_error(monkeypatch, auto, error, capfd):
    def fails():
        raise error

    extension = Extension()
    monkeypatch.setattr(native, "build", fails)
    extension.wanted(CPU)
    extension._started.join()
    assert extension.module is None and type(error).__name__ in extension.reason
    assert not "".join(capfd.readouterr())


def test_a_program_that_can_start_no_thread_goes_on_in_python(monkeypatch, auto):
    def start(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    extension = Extension()
    extension.wanted(CPU)
    assert "new thread" in extension.reason and not extension.ready(CPU)


def test_a_fork_of_a_program_that_builds_begins_anew(monkeypatch, auto):
    extension = Extension()
    monkeypatch.setattr(native, "build", threading.Event().wait)
    extension.wanted(CPU)
    extension._lock.acquire()  # as the thread may have it when the process forks
    extension.forked()
    assert extension._started is None and extension._lock.acquire(blocking=False)
    extension.module = "made"
    extension._started = before = threading.Thread()
    extension.forked()
    assert extension._started is before  # what is there stays


def test_what_is_plain_is_known_in_inference_mode(monkeypatch):
    keys = []
    monkeypatch.setenv(native.VARIABLE, "off")
    monkeypatch.setattr(native, "_keys", lambda device, of=native._keys: keys.append(of(device)))
    for mode in (True, False):
        with torch.inference_mode(mode):
            Extension().wanted(CPU)
    assert keys[0] == keys[1] == torch._C._dispatch_keys(torch.empty(1)).raw_repr()


def test_a_cache_that_cannot_be_written_is_a_reason(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(building.Unbuilt, match="file/kernel-atlas"):
        building.build()


def test_what_lies_in_a_cache_that_is_read_alone_is_used(monkeypatch, empty_cache):
    path = building.folder() / f"{building.NAME}.so"
    path.parent.mkdir(parents=True)
    path.touch()
    monkeypatch.setattr(building, "FileLock", None)
    assert building.build() == path


def test_a_python_without_its_lock_does_without(monkeypatch):
    monkeypatch.setattr(building.sysconfig, "get_config_var", lambda name: name == "Py_GIL_DISABLED")
    with pytest.raises(building.Unbuilt, match="Python's lock"):
        building.build()


def test_operators_are_imported_without_what_compiles():
    program = (
        "import sys, atlas.operators; print('setuptools' in sys.modules or 'torch.utils.cpp_extension' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "False"


BUILD = "import os; from atlas.operators import building; print(building.build(), os.getpid())"


@pytest.mark.slow
def test_of_several_processes_one_compiles(empty_cache, tmp_path):
    count = tmp_path / "count"
    chosen = compiler_that(tmp_path, f'echo once >> {count}; sleep 1; echo made > "$out"')
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD], env=os.environ | {"CXX": chosen}, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    said = {process.communicate(timeout=120)[0].split()[0] for process in processes}
    (path,) = said
    assert count.read_text() == "once\n" and Path(path).read_text() == "made\n"
    assert sorted(one.name for one in Path(path).parent.iterdir()) == ["atlas_host.lock", "atlas_host.so"]


@pytest.mark.slow
def test_a_program_that_ends_earlier_leaves_no_compiler_behind_but_a_fork_of_it_does(empty_cache, tmp_path):
    pid = tmp_path / "pid"
    chosen = compiler_that(tmp_path, f"echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 60")
    program = textwrap.dedent(f"""
        import os, pathlib, sys, threading, time
        from atlas.operators import building
        threading.excepthook = lambda raised: None  # the compiler is ended: Unbuilt
        threading.Thread(target=building.build, daemon=True).start()
        while not pathlib.Path({str(pid)!r}).exists():
            time.sleep(0.05)
        child = os.fork()
        if not child:
            sys.exit(0)  # with what is registered to happen at the end
        os.waitpid(child, 0)
        time.sleep(0.2)
        state = pathlib.Path("/proc", pathlib.Path({str(pid)!r}).read_text().strip(), "stat").read_text()
        print(state.rpartition(")")[2].split()[0])
    """)
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=os.environ | {"CXX": chosen}, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert (said.returncode, said.stdout.strip(), said.stderr) == (0, "S", "")
    until(lambda: ended(int(pid.read_text())))
    (folder,) = (empty_cache / "kernel-atlas").iterdir()
    assert [path.name for path in folder.iterdir()] == ["atlas_host.lock"]


@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="no Linux")
def test_the_compiler_comes_last_in_line_for_cores_and_memory(empty_cache, tmp_path, monkeypatch):
    told = tmp_path / "told"
    chosen = compiler_that(
        tmp_path, f'(cat /proc/self/oom_score_adj; nice; echo "$TMPDIR") > {told}; echo made > "$out"'
    )
    monkeypatch.setenv("CXX", chosen)
    path = building.build()
    score, priority, scratch = told.read_text().split()
    assert (score, int(priority)) == ("1000", min(os.nice(0) + 10, 19)) and Path(scratch).parent == path.parent
