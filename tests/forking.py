"""A server that has imported what takes long: each line that is read, JSON, asks for a run of it in a fork."""

import json
import os
import sys
from pathlib import Path


def asked():
    """In a fork, what was asked for; in the server None, once nobody asks.  The answer to a line is the exit status."""
    for line in sys.stdin:
        assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork would take another thread's locks along"
        child = os.fork()
        if child == 0:
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def begin(folder, environment, printed, first, arguments):
    """Be Python as a shell would start it in a folder; ``printed`` are the files for output and errors.

    ``first`` is looked in before the environment's PYTHONPATH, which must be given.
    """
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in enumerate(printed, start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:1] = [first, *environment["PYTHONPATH"].split(os.pathsep)]
    sys.argv[:] = arguments
