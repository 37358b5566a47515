"""Stop in a program of an interpreted kernel, at its first line, and walk through it with pdb."""

from __future__ import annotations

import bdb
import pdb
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import triton

from .tracing import Launch, Program

_TRITON = str(Path(triton.__file__).parent)


class Stepper:
    """The watcher of a :class:`~.tracing.Trace` that hands the chosen program to the debugger when its turn comes.

    ``launch`` None takes the first launch that has the program.  ``stopped`` says whether it was reached.
    """

    def __init__(self, launch: int | None, program: Program):
        self._launch, self._program = launch, program
        others = ["triton", "triton.*", "numpy", "numpy.*", "atlas.host.interpreter", "atlas.debugging.*"]
        self._debugger = pdb.Pdb(skip=others, nosigint=True)
        self._before: Any = None
        self._under_way = False
        self.stopped = False

    def before_program(self, launch: Launch, program: Program) -> None:
        """Start to trace ahead of the chosen program, and stop ahead of the next one."""
        self.after_launch()
        if self.stopped or program != self._program or self._launch not in (None, launch.number):
            return
        self.stopped = self._under_way = True
        print(f"program {program} of {launch.kernel}, grid {launch.grid}: n steps, p NAME prints, c runs on")
        self._before = sys.gettrace()
        sys.settrace(self._entered)

    def after_launch(self) -> None:
        """Leave the debugger, where its program has run to its end."""
        if self._under_way:
            self._under_way = False
            self._debugger.set_continue()
            sys.settrace(self._before)

    def _entered(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        """The first frame outside Triton is the kernel's."""
        if event != "call" or frame.f_code.co_filename.startswith(_TRITON) or _of_the_atlas(frame):
            return None
        self._debugger.reset()
        self._debugger.botframe = frame.f_back
        self._debugger.set_step()
        sys.settrace(self._debugger.trace_dispatch)
        return self._debugger.trace_dispatch  # not told of the call itself: it stops at the first line


def _of_the_atlas(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").startswith("atlas.debugging")


def quitted(error: BaseException | None) -> bool:
    """Whether an exception is the user's leaving the debugger; Triton wraps it in its own."""
    while error is not None:
        if isinstance(error, bdb.BdbQuit):
            return True
        error = error.__cause__ or error.__context__
    return False
