"""What a user would run instead of a kernel: torch eager, torch.compile, Liger, …

A peer's ``prepare(**inputs)`` does all that should not be timed (compiling, building the autograd graph) and returns a
thunk; each call of the thunk runs the work once on the same inputs and returns the outputs.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .cases import Case

Thunk = Callable[[], Any]


def _takes_all(case: Case) -> str:
    return ""


@dataclass(frozen=True)
class Peer:
    """``prepare(**inputs)`` returns a thunk; ``requires`` names the module an optional peer comes from.

    ``compiles`` says that preparing compiles code for the device, which functional runs do without; ``searches`` that
    it times candidates there as well, for which the device must be its own.  ``launcher`` names the function of
    ``kernels/cuda/<kernel>.py`` that prepares a peer in CUDA C++ from what the cuda stage built.
    ``handles(case)`` is ``""``, or why this peer is left out of a case.
    """

    prepare: Callable[..., Thunk]
    requires: str = ""
    compiles: bool = False
    searches: bool = False
    launcher: str = ""
    handles: Callable[[Case], str] = _takes_all

    def missing(self) -> str:
        """Why this peer cannot run here, or ``""``."""
        if self.requires and not _installed(self.requires):
            return f"module {self.requires!r} is not installed"
        return ""


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that a submodule would be of
        return False


def eager(function: Callable[..., Any], requires: str = "") -> Peer:
    """A peer that calls ``function(**inputs)``."""
    return Peer(lambda **inputs: lambda: function(**inputs), requires)


def cuda(launcher: str) -> Peer:
    """A peer in CUDA C++: ``launcher`` of ``kernels/cuda/<kernel>.py``, with what nvcc made of ``<kernel>.cu``."""
    return Peer(_not_built, requires="cuda.core", compiles=True, launcher=launcher)


def _not_built(**inputs: Any) -> Thunk:
    raise NotImplementedError("a peer in CUDA C++ is prepared from what the cuda stage built, by atlas.cuda.programs")


def compiled(function: Callable[..., Any], mode: str | None = None) -> Peer:
    """A peer that calls ``torch.compile(function)(**inputs)``, compiled for the very shapes it is timed on."""

    def prepare(**inputs: Any) -> Thunk:
        torch._dynamo.reset()
        return _compiled(function, inputs, mode)

    return Peer(prepare, compiles=True)


MAX_AUTOTUNE = "max-autotune-no-cudagraphs"
"""The mode in which products are Triton's too where those beat cuBLAS on their shape.

Without CUDA graphs, which would spare it the launches that all others make.
"""


def max_autotuned(function: Callable[..., Any], cases: Callable[[Case], bool]) -> Peer:
    """Like :func:`compiled`, with :data:`MAX_AUTOTUNE`, on the cases that :func:`searching` tells of."""
    return searching(functools.partial(max_autotune, function), cases)


def max_autotune(function: Callable[..., Any], /, **inputs: Any) -> Thunk:
    """``torch.compile(function)(**inputs)`` by the fastest of the kernels that were tried on the device.

    What :func:`compiled` prepared for the same case stays compiled.
    """
    return _compiled(function, inputs, MAX_AUTOTUNE)


def max_autotuned_gradients(
    function: Callable[..., Any], wrt: Sequence[str], cases: Callable[[Case], bool], cotangent: str = "dy"
) -> Peer:
    """Like :func:`compiled_gradients`, with :data:`MAX_AUTOTUNE`, on the cases that :func:`searching` tells of."""

    def prepare(**inputs: Any) -> Thunk:
        # Donated buffers forbid retain_graph=True, which lets one forward serve every timed backward.
        with torch._functorch.config.patch(donated_buffer=False):
            fast = torch.compile(function, dynamic=False, mode=MAX_AUTOTUNE)
            thunk = _pullback(fast, wrt, cotangent, inputs)
            thunk()
        return thunk

    return searching(prepare, cases)


def searching(prepare: Callable[..., Thunk], cases: Callable[[Case], bool]) -> Peer:
    """A peer whose ``prepare`` tries kernels on the device, which must be its own meanwhile.

    That takes seconds for each shape, so it is done where ``cases`` says so.
    """
    return Peer(
        prepare,
        compiles=True,
        searches=True,
        handles=lambda case: "" if cases(case) else "tunes for seconds: done on few cases",
    )


def _compiled(function: Callable[..., Any], inputs: dict[str, Any], mode: str | None) -> Thunk:
    fast = torch.compile(function, dynamic=False, mode=mode)
    fast(**inputs)
    return lambda: fast(**inputs)


def _pullback(function: Callable[..., Any], wrt: Sequence[str], cotangent: str, inputs: dict[str, Any]) -> Thunk:
    inputs = dict(inputs)
    upstream = inputs.pop(cotangent)
    leaves = {name: inputs[name].detach().requires_grad_() for name in wrt}
    output = function(**(inputs | leaves))
    return lambda: torch.autograd.grad(output, tuple(leaves.values()), upstream, retain_graph=True)


def gradients(function: Callable[..., Any], wrt: Sequence[str], cotangent: str = "dy", requires: str = "") -> Peer:
    """A peer that times only the backward of ``function``: gradients of the inputs ``wrt``, pulled back from ``dy``."""
    return Peer(lambda **inputs: _pullback(function, wrt, cotangent, inputs), requires)


def compiled_gradients(function: Callable[..., Any], wrt: Sequence[str], cotangent: str = "dy") -> Peer:
    """Like :func:`gradients`, of ``torch.compile(function)``."""

    def prepare(**inputs: Any) -> Thunk:
        torch._dynamo.reset()
        # Donated buffers forbid retain_graph=True, which lets one forward serve every timed backward.
        with torch._functorch.config.patch(donated_buffer=False):
            thunk = _pullback(torch.compile(function, dynamic=False), wrt, cotangent, inputs)
            thunk()
        return thunk

    return Peer(prepare, compiles=True)
