"""The one place where kernels are launched, so that launches can be recorded."""

from __future__ import annotations

import threading
from typing import Any, Protocol


class Tape(Protocol):
    """Somebody who writes down what is launched."""

    def launched(self, kernel: Any, grid: tuple[int, ...], args: tuple, meta: dict[str, Any], compiled: Any) -> None:
        """``kernel[grid](*args, **meta)`` was called and gave ``compiled``."""


class _Recording(threading.local):
    tape: Tape | None = None


recording = _Recording()
"""The tape of each thread, while a call is recorded in it."""


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
    compiled = kernel[grid](*plain, **meta)
    if recording.tape is not None:
        recording.tape.launched(kernel, grid, args, meta, compiled)
