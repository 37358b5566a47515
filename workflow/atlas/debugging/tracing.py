"""Watch the stores and loads of interpreted programs: who wrote an element, from which line, and who went outside.

Works through the interpreter's builder, on which every store and load of a kernel ends, also those through block
pointers and descriptors (Triton 3.6, 3.7).  Accesses to memory that belongs to no tensor of the launch are noted and
not made: here they would end the process.  :class:`Stepper` stops in a program at its first line, to walk through it
with pdb.
"""

from __future__ import annotations

import bdb
import linecache
import pdb
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import numpy as np
import torch
import triton
from triton.runtime import interpreter

from ..host import interpreter as faster
from ..host import interpreter_operators as operators

Program = tuple[int, int, int]

_TRITON = str(Path(triton.__file__).parent)
_LAUNCH = interpreter.GridExecutor.__call__.__code__
_RAW = {"bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}


@dataclass(frozen=True)
class SourceLine:
    """A line of a kernel's source, and the function it is in."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        source = linecache.getline(self.file, self.number).strip()
        return f"{Path(self.file).name}:{self.number} in {self.function}: {source}"


@dataclass(frozen=True)
class InterpretedLaunch:
    """One kernel launch: which kernel, and its grid."""

    number: int
    kernel: str
    grid: Program


@dataclass(frozen=True, eq=False)
class Access:
    """One store or load of one program: where to, what, from where in the source (innermost line first)."""

    launch: InterpretedLaunch
    program: Program
    lines: tuple[SourceLine, ...]
    addresses: np.ndarray
    values: np.ndarray | None = None
    dtype: str = ""

    @property
    def who(self) -> str:
        """``program (3, 0, 0) of _kernel``."""
        return f"program {self.program} of {self.launch.kernel}"

    def value_at(self, address: int) -> float:
        """What was stored at an address this store reached."""
        raw = self.values[np.flatnonzero(self.addresses == address)[-1]]
        if self.dtype in _RAW:  # NumPy has no such type: the interpreter holds the bits
            return torch.from_numpy(np.array([raw])).view(_RAW[self.dtype]).item()
        return raw.item()


class Watcher(Protocol):
    """Who wants to know when a program begins and when all of a launch have ended."""

    def before_program(self, launch: InterpretedLaunch, program: Program) -> None:
        """Called ahead of every program."""

    def after_launch(self) -> None:
        """Called after a launch's last program."""


@dataclass(eq=False)
class Trace:
    """As a context manager: notes what interpreted kernels do inside."""

    watcher: Watcher | None = None
    launches: list[InterpretedLaunch] = field(default_factory=list)
    stores: list[Access] = field(default_factory=list)
    wild: list[tuple[str, Access]] = field(default_factory=list)
    """Loads and stores of memory that belongs to no tensor of the launch; they were not made."""
    loads_outside: list[Access] = field(default_factory=list)
    """Loads of ``forbidden`` memory."""
    forbidden: Callable[[], list[tuple[int, int]]] = list
    """Gives address ranges that no kernel has business in: guard bands."""

    def __post_init__(self):
        self._memory: list[tuple[int, int]] = []
        self._kernel, self._keep = "", []

    def __enter__(self) -> Trace:
        builder = interpreter.interpreter_builder
        self._replace(interpreter.GridExecutor, "_init_args_hst", self._begun)
        self._replace(interpreter.GridExecutor, "_restore_args_dev", self._ended)
        self._replace(builder, "set_grid_dim", self._shaped)
        self._replace(builder, "set_grid_idx", self._placed)
        self._replace(builder, "create_masked_store", self._stored)
        self._replace(builder, "create_masked_load", self._loaded)
        self._replace(builder, "create_atomic_rmw", self._added)
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, before in reversed(self._keep):
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def _replace(self, owner: Any, name: str, hook: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        self._keep.append((owner, name, owner.__dict__.get(name)))
        if isinstance(owner, type):
            setattr(owner, name, lambda this, *args, **kwargs: hook(original, this, *args, **kwargs))
        else:
            setattr(owner, name, lambda *args, **kwargs: hook(original, *args, **kwargs))

    def _begun(self, original, executor, *args, **kwargs):
        hosted = original(executor, *args, **kwargs)
        self._kernel = getattr(executor.fn, "__name__", "kernel")
        self._memory = [_extent(tensor) for tensor in _tensors(hosted)]
        return hosted

    def _ended(self, original, executor, *args, **kwargs):
        if self.watcher is not None:
            self.watcher.after_launch()
        return original(executor, *args, **kwargs)

    def _shaped(self, original, *grid):
        self.launches.append(InterpretedLaunch(len(self.launches), self._kernel, tuple(int(size) for size in grid)))
        return original(*grid)

    def _placed(self, original, *program):
        if self.watcher is not None:
            self.watcher.before_program(self.launches[-1], tuple(int(index) for index in program))
        return original(*program)

    def _stored(self, original, ptrs, value, mask, *args, **kwargs):
        mask = self._inside("store", ptrs, mask)
        self.stores.append(self._access(ptrs, mask, value))
        return original(ptrs, value, mask, *args, **kwargs)

    def _added(self, original, operation, ptr, value, mask, *args, **kwargs):
        mask = self._inside("atomic operation", ptr, mask)
        self.stores.append(self._access(ptr, mask, value))
        return original(operation, ptr, value, mask, *args, **kwargs)

    def _loaded(self, original, ptrs, mask, *args, **kwargs):
        mask = self._inside("load", ptrs, mask)
        outside = _within(ptrs.data.astype(np.int64), self.forbidden()) & mask.data
        if outside.any():
            self.loads_outside.append(self._access(ptrs, interpreter.TensorHandle(outside, mask.dtype)))
        return original(ptrs, mask, *args, **kwargs)

    def _inside(self, what: str, ptrs, mask):
        """The mask without accesses to memory of no tensor, which are noted."""
        known = _within(ptrs.data.astype(np.int64), self._memory)
        wild = mask.data & ~known
        if not wild.any():
            return mask
        self.wild.append((what, self._access(ptrs, interpreter.TensorHandle(wild, mask.dtype))))
        return interpreter.TensorHandle(mask.data & known, mask.dtype)

    def _access(self, ptrs, mask, value=None) -> Access:
        taken = np.broadcast_to(mask.data, ptrs.data.shape).astype(bool)
        addresses = ptrs.data[taken].astype(np.int64)
        values = None if value is None else np.broadcast_to(value.data, ptrs.data.shape)[taken]
        dtype = "" if value is None else str(value.dtype)
        program = tuple(int(index) for index in interpreter.interpreter_builder.grid_idx)
        return Access(self.launches[-1], program, tuple(_lines(sys._getframe(1))), addresses, values, dtype)

    def stores_to(self, address: int) -> list[Access]:
        """Every store to one address, in the order made."""
        return [store for store in self.stores if (store.addresses == address).any()]

    def nearest_store(self, address: int) -> tuple[Access, int] | None:
        """The store that came nearest to an address from below, else from above, and where it was."""
        below, above = None, None
        for store in self.stores:
            under, over = store.addresses[store.addresses < address], store.addresses[store.addresses > address]
            if under.size and (below is None or int(under.max()) > below[1]):
                below = store, int(under.max())
            if over.size and (above is None or int(over.min()) < above[1]):
                above = store, int(over.min())
        return below or above


def _lines(frame: FrameType | None) -> Iterator[SourceLine]:
    """The lines of the user's code under way in a program, innermost first."""
    while frame is not None and frame.f_code is not _LAUNCH:
        file = frame.f_code.co_filename
        if not file.startswith(_TRITON) and file not in (__file__, faster.__file__, operators.__file__):
            yield SourceLine(file, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back


def _tensors(arguments: Any) -> Iterator[torch.Tensor]:
    if isinstance(arguments, torch.Tensor):
        yield arguments
    elif isinstance(arguments, dict):
        yield from _tensors(list(arguments.values()))
    elif isinstance(arguments, list | tuple):
        for argument in arguments:
            yield from _tensors(argument)
    elif hasattr(arguments, "base"):  # a tensor descriptor, or a tensor under another dtype
        yield from _tensors(arguments.base)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _within(addresses: np.ndarray, ranges: list[tuple[int, int]]) -> np.ndarray:
    found = np.zeros(addresses.shape, dtype=bool)
    for start, end in ranges:
        found |= (addresses >= start) & (addresses < end)
    return found


class Stepper:
    """The watcher of a :class:`~.tracing.Trace` that hands the chosen program to the debugger when its turn comes.

    ``launch`` None takes the first launch that has the program.  ``stopped`` says whether it was reached.
    """

    def __init__(self, launch: int | None, program: Program):
        self._launch, self._program = launch, program
        others = ["triton", "triton.*", "numpy", "numpy.*", faster.__name__, operators.__name__, "atlas.debugging.*"]
        self._debugger = pdb.Pdb(skip=others, nosigint=True)
        self._before: Any = None
        self._under_way = False
        self.stopped = False

    def before_program(self, launch: InterpretedLaunch, program: Program) -> None:
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
