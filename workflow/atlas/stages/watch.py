"""watch: run a program, and write down which calls of the kernels it makes: a workload.

``python -m atlas watch -- python train.py --steps 20``.  The program runs as it is, and ends with its own exit status;
processes that it starts are watched, too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
from pathlib import Path

from ..errors import AtlasError
from ..results.summary import counted
from ..workload import calls

VARIABLE = "KERNEL_ATLAS_WATCH"
""":data:`atlas.watching.recorder.VARIABLE`, which cannot be had without importing torch."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``python -m atlas watch``."""
    parser.add_argument("--output", type=Path, default=Path("calls.json"), help="the file (default: calls.json)")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM …", help="the command to run")


def run(arguments: argparse.Namespace) -> int:
    """Run the program and say what was seen; its exit status.

    A file of calls that is there is replaced; AtlasError for a file that is none, and for a program that is not found.
    """
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if not program:
        raise AtlasError("name the program to watch: python -m atlas watch -- python train.py")
    path = arguments.output.absolute()
    if path.exists():
        calls.read(path)  # or it is none of ours to replace
        path.unlink()
    try:
        process = subprocess.Popen(program, env=os.environ | {VARIABLE: str(path)})
    except OSError as error:
        raise AtlasError(f"{program[0]}: cannot be run: {error.strerror or error}") from None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # are the program's: it ends, then this does
        signal.signal(number, lambda number, frame: _pass_on(process, number))
    status = process.wait()
    if not path.exists():
        print(f"atlas watch: the program called no function of kernels; {arguments.output} was not written")
    else:
        found = calls.read(path)
        kinds, total = len(found["calls"]), sum(call["count"] for call in found["calls"])
        print(f"atlas watch: {counted(total, 'call')} of {counted(kinds, 'kind')} in {arguments.output}")
        print(f"  look at them: python -m atlas workload {arguments.output}")
    return status if status >= 0 else 128 - status


def _pass_on(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
