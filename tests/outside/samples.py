"""torch's sample inputs and error inputs of operations and modules, as calls, from ``torch.testing._internal``.

Importing its lists changes torch's global state (it freezes the flags of ``torch.backends``) and takes ten seconds: do
so in a process of its own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from . import modules
from .functions import Call, Operation, as_function

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
    module: bool = False

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


@functools.cache
def _listed_modules() -> dict[str, Any]:
    from torch.testing._internal.common_modules import module_db

    return {f"nn.{entry.module_cls.__name__}": entry for entry in module_db}


def missing() -> str:
    """Why torch's list cannot be read here, and what would help; empty where it can."""
    try:
        _listed()
    except ImportError as error:
        return f"torch's list of sample inputs does not import ({error}): pip install expecttest"
    return ""


def torchs(operation: Operation) -> Callable[..., Any] | None:
    """torch's function, of a module as one; None where this torch does not list the operation."""
    if operation.module:
        entry = _listed_modules().get(operation.name)
        return None if entry is None else as_function(entry.module_cls)
    entry = _listed().get((operation.name, operation.variant))
    return None if entry is None else entry.op


def samples(operation: Operation, device: str, dtype: torch.dtype) -> Iterator[Sample]:
    """What torch lists for a dtype and a device: the same at every call."""
    torch.manual_seed(0)
    found = (_module_calls if operation.module else _function_calls)(operation, device, dtype)
    count = itertools.count()
    for kind, calls in found.items():
        for one in calls:
            for call in operation.calls(one):
                yield Sample(call, kind, next(count), dtype, operation.module)


def _function_calls(operation: Operation, device: str, dtype: torch.dtype) -> dict[str, list[Call]]:
    """By kind.  Inputs of reference tests, of which elementwise operations have some, ask for no gradients."""
    entry = _listed().get((operation.name, operation.variant))
    if entry is None or not entry.supports_dtype(dtype, torch.device(device).type):
        return {}
    differentiable = dtype.is_floating_point and dtype.itemsize > 1
    drawn = list(entry.sample_inputs(device, dtype, requires_grad=differentiable))
    found = {"sample": drawn, "with gaps": [one.noncontiguous() for one in drawn]}
    if entry.reference_inputs_func is not None:
        found["reference"] = list(entry.reference_inputs(device, dtype, requires_grad=False))
    if entry.error_inputs_func is not None and dtype == torch.float32:
        found["error"] = [error.sample_input for error in entry.error_inputs(device)]
    return {kind: [Call((one.input, *one.args), one.kwargs) for one in inputs] for kind, inputs in found.items()}


def _module_calls(operation: Operation, device: str, dtype: torch.dtype) -> dict[str, list[Call]]:
    """By kind; torch lists modules for fp32 and fp64, and they are drawn in 16 bits all the same."""
    entry = _listed_modules().get(operation.name)
    if entry is None or dtype.itemsize == 1:
        return {}
    arguments = {"device": device, "dtype": dtype, "requires_grad": True, "training": True}
    found = {"sample": list(entry.module_inputs_func(entry, **arguments))}
    if entry.module_error_inputs_func is not None and dtype == torch.float32:
        errors = entry.module_error_inputs_func(entry, **arguments)
        found["error"] = [error.module_error_input for error in errors]
    return {kind: modules.calls(inputs, entry.module_cls, device, dtype) for kind, inputs in found.items()}
