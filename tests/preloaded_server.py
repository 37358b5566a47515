"""Python with modules imported, which takes seconds for torch: each line that is read asks for a script, in a fork.

The words are the modules.  A line is JSON: ``code``, ``environment``, ``folder``, and ``printed``, the files for output
and errors.  The answer is the exit status.
"""

import atexit
import gc
import importlib
import json
import os
import sys
import threading
import types
from pathlib import Path


def asked():
    """Answer until nobody asks, with None; in a fork, what was asked for."""
    for line in sys.stdin:
        assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork would take another thread's locks along"
        child = os.fork()
        if child == 0:
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def begin(environment, folder, printed):
    """Be ``python -c`` as a shell would start it; returns the namespace of its script."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in enumerate(printed, start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:1] = ["", *environment["PYTHONPATH"].split(os.pathsep)]
    sys.argv[:] = ["-c"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    return vars(sys.modules["__main__"])


os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's, which would start threads
for module in sys.argv[1:]:
    importlib.import_module(module)
gc.collect()
gc.freeze()  # no collection of a fork shall touch, and so copy, what all share
found = asked()
if found is not None:
    exec(compile(found.pop("code"), "<string>", "exec"), begin(**found))
    # As Python ends, but for taking torch apart, which takes half a second.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
