"""The cases of a workload as a kernel's own: whether they can be drawn, and what of a call they do not say."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from ..declaration import Case, Declaration
from ..errors import AtlasError, in_a_line
from ..host.runtime import meta_inputs
from ..validation.cases import INTERPRETER_LIMIT, interpreter_cost
from .current import Sizes, Workload
from .problems import contiguous

REASON = "of the workload"


def case_of(sizes: Sizes) -> Case:
    """The case of a problem."""
    return Case(*sizes, REASON)


def trouble(declaration: Declaration, direction: str, case: Case) -> str:
    """Why a case cannot be drawn for a pass, or ``""``."""
    work = declaration.passes.get(direction)
    if work is None:
        return f"{declaration.name} has no {direction} pass"
    if case.dtype not in declaration.dtypes:
        return f"{declaration.name} takes {', '.join(declaration.dtypes)}: {case.dtype}"
    try:
        meta_inputs(work, case)
        interpreter_cost(work, case)
    except Exception as error:  # whatever a declaration makes of sizes that it does not know
        return f"{declaration.name} cannot draw it: {in_a_line(error)}"
    return ""


def narrowed(declaration: Declaration, workload: Workload, interpret: bool) -> Declaration:
    """The declaration with the workload's cases in the place of its own; as it is for a kernel that it does not meet.

    Edge cases stay, of the dtypes at hand, since a config is certified on them.  In the interpreter, which takes a
    second for what a GPU does in a microsecond, the cases that it can afford stand in their place.  Without a gradient
    in the workload there is no backward pass.  Raises :class:`AtlasError` where no case can be drawn.
    """
    asked = workload.cases(declaration.name)
    if not asked:
        return declaration
    troubles = {sizes: trouble(declaration, "forward", case_of(sizes)) for sizes in asked}
    cases = [case_of(sizes) for sizes in asked if not troubles[sizes]]
    if not cases:
        raise AtlasError(f"{workload.path}: {next(iter(troubles.values()))}; python -m atlas workload {workload.path}")
    passes = [declaration.forward]
    backward = declaration.backward if workload.backward(declaration.name) else None
    passes += [backward] if backward else []
    dtypes = {case.dtype for case in cases}
    edges = tuple(case for case in declaration.edge_cases if case.dtype in dtypes)
    if interpret:
        costs = {case: max(interpreter_cost(work, case) for work in passes) for case in cases}
        edges = tuple(case for case in cases if costs[case] <= INTERPRETER_LIMIT) or edges
    return dataclasses.replace(declaration, cases=lambda gpu: cases, edge_cases=edges, huge_cases=(), backward=backward)


def unsaid(declaration: Declaration, call: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[str]:
    """What of a call the case of one of its runs does not say: strides that the case draws otherwise, and copies."""
    case = case_of((run["dtype"], tuple(run["sizes"].items())))
    if trouble(declaration, run["direction"], case):
        return
    drawn = meta_inputs(declaration.passes[run["direction"]], case)
    for tensor in run["tensors"]:
        other = drawn.get(tensor["name"])
        shape, strides = tensor["shape"], tensor.get("strides")
        if not hasattr(other, "stride") or list(other.shape) != shape:
            if not contiguous(tensor) and not _laid_out(run["sizes"]):
                yield f"{tensor['name']} has strides {strides}, of which the case says nothing"
        elif _effective(shape, list(other.stride())) != _effective(shape, strides):
            yield f"{tensor['name']} has strides {strides}, the case draws {list(other.stride())}"
    if run["during"] == "forward" and all(contiguous(tensor) for tensor in run["tensors"]):
        for one in call["arguments"]:
            if "shape" in one and one["dtype"] == run["dtype"] and not contiguous(one) and len(run["tensors"]):
                yield f"{one['name']} is not contiguous: it is copied first, which the case does not time"


def _laid_out(sizes: Mapping[str, Any]) -> bool:
    return bool({"layout", "strided", "pitch"} & sizes.keys())


def _effective(shape: list[int], strides: list[int] | None) -> list[int]:
    """The strides that say where elements lie: those of dimensions longer than one."""
    return [stride for size, stride in zip(shape, strides or [], strict=False) if size > 1]
