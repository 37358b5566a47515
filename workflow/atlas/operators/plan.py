"""A recorded call as straight-line Python: allocate, launch, return."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import triton

from .descriptors import unwrapped
from .launching import allow_scratch
from .recording import Constant, Described, Geometry, Launch, OfTorch, Operand, Recording, Source, VaryingInput

Plan = Callable[..., Any]
"""Takes a call's arguments, returns its outputs."""

Layout = tuple[dict[int, Geometry], list[tuple[Source, Geometry]]]
"""The allocations by number, and for each output its memory and geometry."""


def plan(recording: Recording, laid: Layout, inputs: Sequence[Any], device: torch.device) -> Plan:
    """The function that repeats on ``device`` what ``recording`` holds, with inputs of the same geometry and dtypes.

    ``laid`` is :func:`layout` of what the recorded call returned for ``inputs``.  Raises
    :class:`~.recording.Unrepeatable` where the call did more than a recording can hold.  The function is generated:
    when it runs nothing is left to decide.
    """
    made, outputs = laid
    scope: dict[str, Any] = {
        "allow_scratch": allow_scratch,
        "current_stream": triton.runtime.driver.active.get_current_stream,
        "device": device,
        "empty": torch.empty_strided,
        "empty_like": torch.empty_like,
    }
    lines = [f"stream = current_stream({device.index})"]
    of_torch = [one for one in recording.launches if isinstance(one, OfTorch)]
    computed = {one.made for one in of_torch}
    for number, geometry in made.items():
        if number not in computed:
            lines.append(f"b{number} = {_allocation(number, geometry, inputs, scope)}")
    used = {(memory.allocated, memory.number) for memory in _read(recording.launches)}
    lines += [_address(*which) for which in sorted(used) if not (which[0] and which[1] in computed)]
    for number, launch in enumerate(recording.launches):
        if isinstance(launch, OfTorch):
            lines.append(_computed(number, launch, made, inputs, scope))
            lines += [_address(True, launch.made)] if (True, launch.made) in used else []
        else:
            lines += _launched(number, launch, scope)
        if of_torch:
            lines += [f"del b{gone}" for gone in dropped(recording.launches[number:], made, outputs)]
    returned = [_returned(source, geometry, made) for source, geometry in outputs]
    arguments = ", ".join(f"a{number}" for number in range(len(inputs)))
    head, indent = f"def repeat({arguments}):\n", "    "
    if of_torch:  # which computes as it did where nothing is recorded: without gradients, without autocast
        scope |= {"no_grad": torch.no_grad, "no_autocast": torch._C._DisableAutocast}
        head, indent = f"{head}    with no_grad(), no_autocast():\n", "        "
    lines.append(f"return {', '.join(returned)}")
    exec(head + "".join(f"{indent}{line}\n" for line in lines), scope)
    return scope["repeat"]


def _read(launches: Sequence[Launch | OfTorch]) -> Iterator[Source]:
    """The memory that kernels are given the addresses of."""
    for launch in launches:
        if isinstance(launch, Launch):
            for value in launch.values:
                memory = value.memory if isinstance(value, Described) else value
                if isinstance(memory, Source):
                    yield memory


def _address(allocated: bool, number: int) -> str:
    return f"p_{_tensor(allocated, number)} = {_tensor(allocated, number)}.data_ptr()"


def dropped(
    rest: Sequence[Launch | OfTorch], made: Mapping[int, Geometry], outputs: Sequence[tuple[Source, Geometry]]
) -> list[int]:
    """The numbers of allocations of which the first of ``rest`` is the last to use them."""

    def allocations(launches: Sequence[Launch | OfTorch]) -> set[int]:
        given = [one.memory for launch in launches if isinstance(launch, OfTorch) for one in launch.operands]
        return {memory.number for memory in (*_read(launches), *given) if memory.allocated}

    kept = {source.number for source, _ in outputs} | allocations(rest[1:])
    return [number for number in sorted(allocations(rest[:1]) - kept) if number in made]


def _computed(
    number: int, one: OfTorch, made: Mapping[int, Geometry], inputs: Sequence[Any], scope: dict[str, Any]
) -> str:
    """The line of what torch computes, the ``number``-th of the launches."""

    def word(value: Any, name: str) -> str:
        if not isinstance(value, Operand):
            scope[name] = value
            return name
        memory, geometry = value.memory, value.geometry
        tensor, start = _tensor(memory.allocated, memory.number), memory.offset // geometry.dtype.itemsize
        whole = made[memory.number] if memory.allocated else Geometry.of(inputs[memory.number])
        if whole == geometry and not start:
            return tensor
        begin = start if memory.allocated else f"{tensor}.storage_offset() + {start}"
        return f"{tensor}.as_strided({geometry.shape}, {geometry.stride}, {begin})"

    scope[f"torch{number}"] = one.function
    words = [word(value, f"w{number}_{position}") for position, value in enumerate(one.args)]
    words += [f"{name}={word(value, f'w{number}_{name}')}" for name, value in one.kwargs.items()]
    target = "" if one.made is None else f"b{one.made} = "
    return f"{target}torch{number}({', '.join(words)})"


def layout(recording: Recording, result: Any) -> Layout:
    """What to allocate, by number, and where each returned tensor lies.

    What is returned as a view of all of an allocation is allocated in the view's shape.
    """
    outputs, made = recording.outputs(result), dict(enumerate(recording.allocations))
    if any(isinstance(one, OfTorch) for one in recording.launches):  # in what shape is torch's to say
        return made, outputs
    return made | {s.number: g for s, g in outputs if _whole(s, g, recording.allocations)}, outputs


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
