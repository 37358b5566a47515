"""torch's sample inputs and error inputs of an operation, as calls; its list is ``torch.testing._internal``'s.

Importing the list changes torch's global state (it freezes the flags of ``torch.backends``) and takes ten seconds: in a
process of its own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .functions import Call, Operation

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)
"""Those that samples are drawn in, as far as an operation has them; fp8 where it has no other."""


@dataclass(frozen=True)
class Sample:
    """One call of torch's function, the ``number``-th of an operation in a dtype.

    ``kind`` is "sample", "with gaps" (the same, its tensors not contiguous), "reference" (inputs of torch's reference
    tests), or "error" (torch's list says that it raises).
    """

    call: Call
    kind: str
    number: int
    dtype: torch.dtype

    @property
    def label(self) -> str:
        """What a message calls it."""
        return f"{self.kind} {self.number} in {self.dtype}"

    @property
    def elements(self) -> int:
        """Of all its tensors."""
        return sum(tensor.numel() for tensor in tensors(self.call))


def tensors(call: Call) -> list[torch.Tensor]:
    """All tensors among the arguments, in a fixed order."""
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def changed(call: Call, change: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    """The call with every tensor replaced by ``change`` of it."""
    args, kwargs = pytree.tree_map_only(torch.Tensor, change, (call.args, call.kwargs))
    return Call(args, kwargs)


@functools.cache
def _listed() -> dict[tuple[str, str], Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return {(entry.name, entry.variant_test_name): entry for entry in op_db}


def missing() -> str:
    """Why torch's list cannot be read here, and what would help; empty where it can."""
    try:
        _listed()
    except ImportError as error:
        return f"torch's list of sample inputs does not import ({error}): pip install expecttest"
    return ""


def torchs(operation: Operation) -> Callable[..., Any] | None:
    """torch's function; None where this torch does not list the operation."""
    entry = _listed().get((operation.name, operation.variant))
    return None if entry is None else entry.op


def samples(operation: Operation, device: str, dtype: torch.dtype) -> Iterator[Sample]:
    """What torch lists for a dtype and a device: the same at every call.

    Inputs of its reference tests, of which elementwise operations have some of their own, ask for no gradients.
    """
    entry = _listed().get((operation.name, operation.variant))
    if entry is None or not entry.supports_dtype(dtype, torch.device(device).type):
        return
    torch.manual_seed(0)
    differentiable = dtype.is_floating_point and dtype.itemsize > 1
    drawn = list(entry.sample_inputs(device, dtype, requires_grad=differentiable))
    found = {"sample": drawn, "with gaps": [one.noncontiguous() for one in drawn]}
    if entry.reference_inputs_func is not None:
        found["reference"] = list(entry.reference_inputs(device, dtype, requires_grad=False))
    if entry.error_inputs_func is not None and dtype == torch.float32:
        found["error"] = [error.sample_input for error in entry.error_inputs(device)]
    count = itertools.count()
    for kind, inputs in found.items():
        for one in inputs:
            for call in operation.calls(Call((one.input, *one.args), one.kwargs)):
                yield Sample(call, kind, next(count), dtype)
