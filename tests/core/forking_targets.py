"""What forked processes of the tests do, and scripts that ask for them; nothing here is heavy."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from atlas.workers import forking
from atlas.workers.process import TORCH, Process


def describe(connection):
    """Say what this process is like."""
    connection.send(
        {
            "modules": [name for name in ("torch", "triton", "atlas.catalog") if name in sys.modules],
            "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
            "folder": str(Path.cwd()),
            "arguments": sys.argv,
            "variables": {name: os.environ.get(name) for name in ("GIVEN", "TAKEN", "OPENBLAS_NUM_THREADS")},
            "name": Path("/proc/self/comm").read_text().strip(),
        }
    )


def interprets(connection):
    """Say whether Triton's own functions are interpreted here."""
    import triton.language as tl

    connection.send(type(tl.cdiv).__name__)


def threads_of_torch(connection):
    """Say how many threads torch would use, and a number that NumPy draws."""
    import numpy
    import torch

    connection.send((torch.get_num_threads(), float(numpy.random.random())))


def sleep_with_a_child(connection):
    """Start another process, tell both ids, and answer nothing more."""
    child = subprocess.Popen(["sleep", "600"])
    connection.send((os.getpid(), child.pid))
    time.sleep(600)


def owner():
    """A script: own a worker that sleeps, print its processes, and wait."""
    with Process(sleep_with_a_child) as process:
        process.start()
        print(*process.receive(240), flush=True)
        time.sleep(600)


def described():
    """A script: print what a worker with torch is like."""
    with Process(describe, imported=TORCH) as process:
        process.start()
        print(process.receive(240))


def run():
    """A script: a run of three commands."""
    forking.begin()
    code = f"import sys, {__name__}, atlas.workers.forking as f; sys.exit(f.command({__name__}.act, sys.argv[1:]))"
    for words in (["exit", "3"], ["say", "hello"], ["say", "again"]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
        print(done.returncode, done.stdout.strip(), done.stderr.strip(), flush=True)


def act(words):
    """A command."""
    if words[0] == "exit":
        return int(words[1])
    if words[0] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if words[0] == "wait":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        print(os.getpid(), flush=True)
        time.sleep(600)
    print(words[1])
    return 0
