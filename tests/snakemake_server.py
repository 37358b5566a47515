"""Snakemake, imported once, which takes most of a dry run: each line that is read asks for a command of it, in a fork.

A line is JSON: ``folder``, ``environment``, ``words``, and ``printed``, the files for output and errors.  The answer is
the exit status.
"""

import os
import sys
import traceback
from pathlib import Path

import forking

# Executors that a user has installed may import numpy and pyarrow, which would start threads.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}

import rich.progress
import smart_open
import snakemake.cli
import snakemake.report

PRELOADED = rich.progress, smart_open, snakemake.report
"""What Snakemake imports as late as in a run: without it here each fork did, for a second or two."""

snakemake.cli.get_argument_parser()  # imports every plugin that is installed
found = forking.asked()
if found is not None:
    status, words = 1, found.pop("words")
    program = str(Path(snakemake.__file__).with_name("__main__.py"))
    try:
        forking.begin(**found, first=found["folder"], arguments=[program, *words])
        snakemake.cli.main(words)
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
