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
    bound: int | None = None


recording = _Recording()
"""Of each thread: the tape, while a call is recorded in it; whether a kernel is being launched; for which device
:func:`bind_context` was called last."""


def bind_context() -> None:
    """Give this thread the CUDA context of its current device, which calls of the driver need.

    In a thread that is new the first call of the runtime that needs a context binds it, and an allocation from torch's
    cache is none.  To describe a tensor to the copy engine is a call of the driver.
    """
    if not torch.cuda.is_initialized():
        return
    device = torch.cuda.current_device()
    if recording.bound != device:
        torch.cuda.mem_get_info(device)
        recording.bound = device


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


def compiles_only() -> bool:
    """Whether launches only compile, for a GPU that need not be there."""
    try:
        return getattr(triton.runtime.driver.active, "compiles_only", False)
    except RuntimeError:  # no driver
        return False


def _check_memory(args: tuple[Any, ...]) -> None:
    """Raise RuntimeError for tensors whose memory does not hold their elements: meta and lazily negated ones.

    Operators keep them away.  A launcher that is called past them would lose the process its GPU, or get a sign wrong.
    """
    for value in args:
        if isinstance(value, torch.Tensor):
            if value.is_meta and not compiles_only():
                raise RuntimeError(
                    "kernels cannot be launched on a meta tensor, which has no memory: call the operator"
                )
            if value.is_neg():
                raise RuntimeError(
                    "kernels cannot be launched on a lazily negated tensor: call its resolve_neg() first"
                )


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
    """``kernel[grid](*args, **meta)``: launch a ``@triton.jit`` kernel on one to three dimensions of programs."""
    plain = tuple(int(value) if isinstance(value, Varying) else value for value in args)
    _check_memory(plain)
    allow_scratch()
    bind_context()
    recording.launching = True
    try:
        compiled = kernel[grid](*plain, **meta)
    finally:
        recording.launching = False
    if recording.tape is not None:
        recording.tape.launched(kernel, grid, args, meta, compiled)
