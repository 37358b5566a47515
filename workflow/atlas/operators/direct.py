"""A recorded call as the extension takes it: plain numbers, from which it launches by the CUDA driver itself."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .descriptors import unwrapped
from .plan import dropped
from .recording import Constant, Described, Geometry, Launch, OfTorch, Operand, Source, Unrepeatable, VaryingInput

INPUT, MADE, VARYING, CONSTANT, MAP = range(5)
"""What an argument of a kernel is: the address of an input or of an allocation, a varying input, a constant, a map."""

_FUNCTIONS = ("cuLaunchKernelEx", "cuCtxGetCurrent", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent",
              "cuTensorMapReplaceAddress")  # fmt: skip

_FORMATS = {"i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "?", "u8": "B", "u16": "H", "u32": "I",
            "u64": "Q", "fp32": "f", "f32": "f", "fp64": "d"}  # fmt: skip
"""How Triton lays a scalar of a type out."""

_LAUNCHERS = "triton.backends.nvidia.driver"
"""The module whose launchers are known."""

_SCRATCH = 2
"""Addresses that Triton appends to a kernel's parameters, null where the kernel asks for none."""


_WORDS = (bool, int, float, torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Types of what torch's functions are given beside tensors and sizes."""

_MAP_BYTES, _MOST_MAPS = 128, 8
"""Size of a map of a tensor for the copy engine; maps that a launch may have."""


class Indirect(Exception):
    """Launches that only Triton's launcher can make."""


@functools.cache
def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def addresses() -> tuple[int, ...]:
    """Those of the driver's functions that the extension calls; zeros where there is no driver."""
    driver = _driver()
    found = (getattr(driver, name, None) for name in _FUNCTIONS)
    return tuple(ctypes.cast(function, ctypes.c_void_p).value or 0 if function else 0 for function in found)


def direct(
    launches: Sequence[Launch | OfTorch],
    made: Mapping[int, Geometry],
    outputs: Sequence[tuple[Source, Geometry]],
    single: bool,
    inputs: Sequence[Any],
) -> tuple[Any, ...]:
    """The recording for the extension's ``learn``; :class:`Indirect` where Triton's launcher must be called.

    ``inputs`` are the arguments of the call that was recorded.
    """
    kept: list[torch.Tensor] = []
    computed = {one.made for one in launches if isinstance(one, OfTorch)}
    if not computed:
        launches, made, outputs = _together(launches, made, outputs)
    allocations = tuple((g.shape, tuple(g.stride), g.dtype, number in computed) for number, g in made.items())
    launched = []
    for number, one in enumerate(launches):
        gone = dropped(launches[number:], made, outputs) if computed else []
        if isinstance(one, OfTorch):
            launched.append((True, _computation(one, made, inputs), tuple(gone)))
        else:
            launched.append((False, _launch(one, kept), tuple(gone)))
    returned = tuple(
        (
            source.number,
            made[source.number] == geometry and not source.offset,
            geometry.shape,
            tuple(geometry.stride),
            source.offset // geometry.dtype.itemsize,
        )
        for source, geometry in outputs
    )
    return allocations, tuple(launched), returned, single, tuple(kept)


_APART = 512
"""Bytes on which each tensor begins, as those do that torch allocates on a GPU."""


def _together(
    launches: Sequence[Launch], made: Mapping[int, Geometry], outputs: Sequence[tuple[Source, Geometry]]
) -> tuple[list[Launch], dict[int, Geometry], list[tuple[Source, Geometry]]]:
    """The same with one allocation for all that is not returned: an allocation costs a third of a launch."""
    returned = {source.number for source, _ in outputs}
    if len(made) - len(returned) < 2:
        return launches, made, outputs
    places, found, end = {}, {}, 0
    for number in sorted(returned):
        places[number] = Source(True, len(found))
        found[len(found)] = made[number]
    for number in sorted(set(made) - returned):
        places[number] = Source(True, len(returned), end)
        end += -(-made[number].extent() // _APART) * _APART
    found[len(returned)] = Geometry((end,), (1,), torch.uint8)

    def moved(value: Any) -> Any:
        if isinstance(value, Described):
            return dataclasses.replace(value, memory=moved(value.memory))
        if not isinstance(value, Source) or not value.allocated:
            return value
        place = places[value.number]
        return Source(True, place.number, place.offset + value.offset)

    again = [dataclasses.replace(one, values=tuple(map(moved, one.values))) for one in launches]
    return again, found, [(moved(source), geometry) for source, geometry in outputs]


def _computation(one: OfTorch, made: Mapping[int, Geometry], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """A function of torch with its arguments in the schema's order, and which of them are views of what."""
    schema, words, views = one.function._schema, [], []
    for position, argument in enumerate(schema.arguments):
        given = position < len(one.args) or argument.name in one.kwargs
        value = one.args[position] if position < len(one.args) else one.kwargs.get(argument.name)
        value = value if given else argument.default_value
        if isinstance(value, Operand):
            views.append((position, *_view(value, made, inputs)))
            value = None
        words.append(_word(value))
    return schema.name, schema.overload_name, tuple(words), tuple(views), -1 if one.made is None else one.made


def _view(operand: Operand, made: Mapping[int, Geometry], inputs: Sequence[Any]) -> tuple[Any, ...]:
    memory, geometry = operand.memory, operand.geometry
    whole = made[memory.number] if memory.allocated else Geometry.of(inputs[memory.number])
    start = memory.offset // geometry.dtype.itemsize
    same = whole == geometry and not start
    return memory.allocated, same, memory.number, geometry.shape, tuple(geometry.stride), start


def _word(value: Any) -> Any:
    if isinstance(value, list | tuple):
        value = tuple(value)
        if not all(type(one) is int for one in value):
            raise Indirect
    elif value is not None and type(value) not in _WORDS:
        raise Indirect
    return value


def _launch(launch: Launch, kept: list[torch.Tensor]) -> tuple[Any, ...]:
    compiled, run = launch.compiled, launch.compiled.run
    if type(run).__module__ != _LAUNCHERS:
        raise Indirect
    if run.global_scratch_size or run.profile_scratch_size or len(compiled.packed_metadata) != 3:
        raise Indirect
    warps, cluster, shared = compiled.packed_metadata
    kinds = list(compiled.src.signature.values())
    if len(kinds) != len(launch.values):
        raise Indirect
    slots, maps = [], []
    expansions = _expansions(launch)
    for value, kind in zip(launch.values, kinds, strict=True):
        if isinstance(value, Described):
            slots += _described(value, expansions.pop(0), maps, kept)
        elif kind != "constexpr":
            slots.append(_slot(value, kind, kept))
    if len(maps) > _MOST_MAPS:
        raise Indirect
    _check_parameters(compiled.function, [slot[0] for slot in slots])
    arguments = (*(slot[1] for slot in slots), *((CONSTANT, 0, 0, 0),) * _SCRATCH)
    cooperative, early = bool(run.launch_cooperative_grid), bool(run.launch_pdl)
    grid = launch.grid[0] * cluster, *launch.grid[1:]
    return compiled.function, grid, 32 * warps, shared, cooperative, early, cluster, arguments, tuple(maps)


def _expansions(launch: Launch) -> list[Any]:
    described = [value for value in launch.values if isinstance(value, Described)]
    if not described:
        return []
    try:
        return unwrapped(launch.compiled.run, described)[1]
    except Unrepeatable:
        raise Indirect from None


def _described(value: Described, expansion: Any, maps: list[Any], kept: list[torch.Tensor]) -> list[Any]:
    """The parameters that a descriptor becomes: its map, which goes to ``maps``, then its sizes and strides."""
    filled, constants = expansion
    if filled is None or len(constants) != 2 * len(value.form.shape):
        raise Indirect
    memory = _slot(value.memory, "*", kept)[1]
    slots = [(_MAP_BYTES, (MAP, len(maps), 0, 0))]
    maps.append((memory, _template(filled)))
    for position, constant in enumerate(constants):
        slots.append(_slot(constant, "i32" if position < len(value.form.shape) else "i64", kept))
    return slots


_ONE, _OTHER = 1 << 30, 3 << 31
"""Addresses to try maps with."""


def _template(filled: Mapping[int, Any]) -> bytes:
    """A map in bytes, in which the driver can replace the address; :class:`Indirect` where that is not sure.

    Triton keeps it at the end of an object of its own.  It is it if the driver makes the map of another address of it.
    """
    replace = getattr(_driver(), "cuTensorMapReplaceAddress", None)
    one, other = (_bytes(filled[address]) for address in (_ONE, _OTHER))
    room = ctypes.create_string_buffer(2 * _MAP_BYTES)
    begin = -ctypes.addressof(room) % _MAP_BYTES  # the driver wants it on 64 bytes
    room[begin : begin + _MAP_BYTES] = one
    if replace is None or one == other:
        raise Indirect
    replace.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    failed = replace(ctypes.addressof(room) + begin, _OTHER)
    if failed or room[begin : begin + _MAP_BYTES] != other:
        raise Indirect
    return one


def _bytes(made: Any) -> bytes:
    size = type(made).__basicsize__
    if type(made).__name__ != "PyCUtensorMap" or size not in (_MAP_BYTES + 64, 2 * _MAP_BYTES):
        raise Indirect
    return ctypes.string_at(id(made) + size - _MAP_BYTES, _MAP_BYTES)


def _slot(value: Any, kind: Any, kept: list[torch.Tensor]) -> tuple[int, tuple[int, int, int, int]]:
    """Bytes of an argument, and what the extension is told of it."""
    if not isinstance(kind, str) or (kind[0] != "*" and kind not in _FORMATS):
        raise Indirect
    if kind[0] == "*":
        if isinstance(value, Source):
            return 8, (MADE if value.allocated else INPUT, value.number, value.offset, 0)
        if isinstance(value, Constant):
            kept.append(value.tensor)
            return 8, (CONSTANT, 0, 0, value.tensor.data_ptr())
        raise Indirect
    size = struct.calcsize(_FORMATS[kind])
    if isinstance(value, VaryingInput):
        if _FORMATS[kind] not in "bhiqBHIQ":
            raise Indirect
        return size, (VARYING, value.number, 0, 0)
    try:
        packed = struct.pack(f"<{_FORMATS[kind]}", value)
    except (struct.error, OverflowError):
        raise Indirect from None
    return size, (CONSTANT, 0, 0, int.from_bytes(packed.ljust(8, b"\0"), "little"))


def _check_parameters(function: int, sizes: Sequence[int]) -> None:
    """That the driver says of the kernel what is about to be passed; :class:`Indirect` where it does not."""
    ask = getattr(_driver(), "cuFuncGetParamInfo", None)
    if ask is None:
        raise Indirect
    ask.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)
    offset, size, found = ctypes.c_size_t(), ctypes.c_size_t(), []
    while len(found) <= len(sizes) + _SCRATCH:
        if ask(function, len(found), ctypes.byref(offset), ctypes.byref(size)):
            break
        found.append(size.value)
    scratch = found[len(sizes) :]
    if found[: len(sizes)] != list(sizes) or scratch not in ([8] * n for n in range(_SCRATCH + 1)):
        raise Indirect
