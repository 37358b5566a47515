"""The one place where kernels are launched, so that launches can be recorded."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import torch
import triton
from triton.runtime import _allocation


class Tape(Protocol):
    """Somebody who writes down what is launched."""

    def launched(self, kernel: Any, grid: tuple[int, ...], args: tuple, meta: dict[str, Any], compiled: Any) -> None:
        """``kernel[grid](*args, **meta)`` was called and gave ``compiled``."""


class _Recording(threading.local):
    tape: Tape | None = None
    launching: bool = False


recording = _Recording()
"""The tape of each thread, while a call is recorded in it, and whether a kernel is being launched."""


def _scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    return torch.empty(size, dtype=torch.int8, device="cuda")


def allow_scratch() -> None:
    """Let kernels have what they need to keep descriptors that they make themselves; a caller's allocator stays."""
    if isinstance(_allocation._allocator.get(), _allocation.NullAllocator):
        triton.set_allocator(_scratch)


class Varying(int):
    """An int that differs from call to call (a seed), the ``number``-th argument: it goes into kernels as it is.

    Arithmetic is refused, for its result would be recorded as a constant.
    """

    number: int

    @staticmethod
    def of(value: int, number: int) -> Varying:
        """``value``, known to be argument ``number``."""
        varying = Varying(value)
        varying.number = number
        return varying

    def _refuse(self, *_: Any) -> Any:
        raise TypeError("an argument that varies from call to call must be passed to kernels as it is; compute in the "
                        "kernel, or before the operator is called")  # fmt: skip

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = __neg__ = _refuse
    __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __truediv__ = _refuse


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
    """``kernel[grid](*args, **meta)``: launch a ``@triton.jit`` kernel on one to three dimensions of programs."""
    plain = tuple(int(value) if isinstance(value, Varying) else value for value in args)
    allow_scratch()
    recording.launching = True
    try:
        compiled = kernel[grid](*plain, **meta)
    finally:
        recording.launching = False
    if recording.tape is not None:
        recording.tape.launched(kernel, grid, args, meta, compiled)
