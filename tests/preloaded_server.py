"""Python with modules imported, which takes seconds for torch: each line that is read asks for a script, in a fork.

The words are the modules.  A line is JSON: ``code``, ``environment``, ``folder``, and ``printed``, the files for output
and errors.  The answer is the exit status.
"""

import atexit
import gc
import importlib
import os
import sys
import threading
import types

import forking

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's, which would start threads
for module in sys.argv[1:]:
    importlib.import_module(module)
gc.collect()
gc.freeze()  # no collection of a fork shall touch, and so copy, what all share
found = forking.asked()
if found is not None:
    code = compile(found.pop("code"), "<string>", "exec")
    forking.begin(**found, first="", arguments=["-c"])
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(code, vars(sys.modules["__main__"]))
    # As Python ends, but for taking torch apart, which takes half a second.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
