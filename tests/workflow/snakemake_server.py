"""Snakemake, imported once, which takes most of a dry run: each line that is read asks for a command of it, in a fork.

A line is JSON: ``folder``, ``environment``, ``words``, and ``printed``, the files for output and errors.  The answer is
the exit status.
"""

import json
import os
import sys
import traceback
from pathlib import Path

# Executors that a user has installed may import numpy and pyarrow, which would start threads.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}

import rich.progress
import smart_open
import snakemake.cli
import snakemake.report

PRELOADED = rich.progress, smart_open, snakemake.report
"""What Snakemake imports as late as in a run: without it here each fork did, for a second or two."""


def run(folder, environment, words, printed):
    """Be ``python -m snakemake`` as a shell would start it."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in enumerate(printed, start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:1] = [folder, *environment["PYTHONPATH"].split(os.pathsep)]
    sys.argv[:] = [str(Path(snakemake.__file__).with_name("__main__.py")), *words]
    snakemake.cli.main(words)


def main():
    """Answer until nobody asks."""
    snakemake.cli.get_argument_parser()  # imports every plugin that is installed
    for line in sys.stdin:
        assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork would take another thread's locks along"
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run(**json.loads(line))
            except SystemExit as end:
                status = end.code
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


main()
