"""A recorded call as straight-line Python: allocate, launch, return."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton

from .descriptors import unwrapped
from .launching import allow_scratch
from .recording import Constant, Described, Geometry, Launch, Recording, Source, VaryingInput

Plan = Callable[..., Any]
"""Takes a call's arguments, returns its outputs."""


def plan(recording: Recording, result: Any, inputs: Sequence[Any], device: torch.device) -> Plan:
    """The function that repeats on ``device`` what ``recording`` holds, with inputs of the same geometry and dtypes.

    ``result`` is what the recorded call returned for ``inputs``.  Raises :class:`~.recording.Unrepeatable` where the
    call did more than a recording can hold.  The function is generated: when it runs nothing is left to decide.
    """
    outputs = recording.outputs(result)
    made = dict(enumerate(recording.allocations))
    # What is returned as a view of all of an allocation is allocated in the view's shape.
    made |= {source.number: geometry for source, geometry in outputs if _whole(source, geometry, recording.allocations)}
    scope: dict[str, Any] = {
        "allow_scratch": allow_scratch,
        "current_stream": triton.runtime.driver.active.get_current_stream,
        "device": device,
        "empty": torch.empty_strided,
        "empty_like": torch.empty_like,
    }
    lines = [f"stream = current_stream({device.index})"]
    for number, geometry in made.items():
        lines.append(f"b{number} = {_allocation(number, geometry, inputs, scope)}")
    values = [v.memory if isinstance(v, Described) else v for launch in recording.launches for v in launch.values]
    used = {(value.allocated, value.number) for value in values if isinstance(value, Source)}
    lines += [f"p_{_tensor(*which)} = {_tensor(*which)}.data_ptr()" for which in sorted(used)]
    for number, launch in enumerate(recording.launches):
        lines += _launched(number, launch, scope)
    returned = [_returned(source, geometry, made) for source, geometry in outputs]
    lines.append(f"return {', '.join(returned)}")
    arguments = ", ".join(f"a{number}" for number in range(len(inputs)))
    exec(f"def repeat({arguments}):\n" + "".join(f"    {line}\n" for line in lines), scope)
    return scope["repeat"]


def _whole(source: Source, geometry: Geometry, allocations: Sequence[Geometry]) -> bool:
    allocation = allocations[source.number]
    same = math.prod(geometry.shape) == math.prod(allocation.shape) and geometry.dtype == allocation.dtype
    return same and source.offset == 0


def _allocation(number: int, geometry: Geometry, inputs: Sequence[Any], scope: dict[str, Any]) -> str:
    for position, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and Geometry.of(value) == geometry and value.is_contiguous():
            return f"empty_like(a{position})"  # the cheapest way to allocate
    scope[f"dtype{number}"] = geometry.dtype
    return f"empty({geometry.shape}, {geometry.stride}, dtype=dtype{number}, device=device)"


def _launched(number: int, launch: Launch, scope: dict[str, Any]) -> list[str]:
    """The lines of the ``number``-th launch."""
    run = launch.compiled.run
    described = [value for value in launch.values if isinstance(value, Described)]
    lines = ["allow_scratch()"] if getattr(run, "global_scratch_size", 0) else []
    if described:
        run, expansions = unwrapped(run, described)
    scope[f"run{number}"] = run
    scope[f"function{number}"] = launch.compiled.function
    scope[f"metadata{number}"] = launch.compiled.packed_metadata
    words = [*map(str, launch.grid), "stream", f"function{number}", f"metadata{number}", "None", "None", "None"]
    for position, value in enumerate(launch.values):
        name = f"v{number}_{position}"
        if isinstance(value, Described):
            maps, constants = expansions.pop(0)
            scope[f"m{name}"] = maps
            address = _value(value.memory, name, scope)
            words += [address if maps is None else f"m{name}[{address}]", *map(repr, constants)]
        else:
            words.append(_value(value, name, scope))
    return [*lines, f"run{number}({', '.join(words)})"]


def _tensor(allocated: bool, number: int) -> str:
    return f"b{number}" if allocated else f"a{number}"


def _value(value: Any, name: str, scope: dict[str, Any]) -> str:
    """The expression of one kernel argument; what has no literal gets ``name`` in ``scope``."""
    if isinstance(value, Source):
        return f"p_{_tensor(value.allocated, value.number)}" + (f" + {value.offset}" if value.offset else "")
    if isinstance(value, VaryingInput):
        return f"a{value.number}"
    if isinstance(value, Constant):
        scope[name] = value.tensor
        return f"{name}.data_ptr()"
    if value is None or type(value) in (bool, int, str):
        return repr(value)
    scope[name] = value
    return name


def _returned(source: Source, geometry: Geometry, made: Mapping[int, Geometry]) -> str:
    name = _tensor(True, source.number)
    if made[source.number] == geometry and not source.offset:
        return name
    return f"{name}.as_strided({geometry.shape}, {geometry.stride}, {source.offset // geometry.dtype.itemsize})"
