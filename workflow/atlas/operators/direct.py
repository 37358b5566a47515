"""A recorded call as the extension takes it: plain numbers, from which it launches by the CUDA driver itself."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .recording import Constant, Geometry, Launch, OfTorch, Source, VaryingInput

INPUT, MADE, VARYING, CONSTANT = range(4)
"""What an argument of a kernel is: the address of an input or of an allocation, a varying input, a constant."""

_FUNCTIONS = ("cuLaunchKernel", "cuLaunchCooperativeKernel", "cuCtxGetCurrent", "cuDevicePrimaryCtxRetain",
              "cuCtxSetCurrent")  # fmt: skip

_FORMATS = {"i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "?", "u8": "B", "u16": "H", "u32": "I",
            "u64": "Q", "fp32": "f", "f32": "f", "fp64": "d"}  # fmt: skip
"""How Triton lays a scalar of a type out."""

_LAUNCHERS = "triton.backends.nvidia.driver"
"""The module whose launchers are known."""

_SCRATCH = 2
"""Addresses that Triton appends to a kernel's parameters, null where the kernel asks for none."""


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
    return tuple(ctypes.cast(getattr(driver, name), ctypes.c_void_p).value or 0 if driver else 0 for name in _FUNCTIONS)


def direct(
    launches: Sequence[Launch | OfTorch],
    made: Mapping[int, Geometry],
    outputs: Sequence[tuple[Source, Geometry]],
    single: bool,
) -> tuple[Any, ...]:
    """The recording for the extension's ``learn``; :class:`Indirect` where Triton's launcher must be called."""
    if any(isinstance(one, OfTorch) for one in launches):
        raise Indirect
    kept: list[torch.Tensor] = []
    allocations = tuple((g.shape, tuple(g.stride), torch.empty(0, dtype=g.dtype, device="cpu")) for g in made.values())
    launched = tuple(_launch(one, kept) for one in launches)
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
    return allocations, launched, returned, single, tuple(kept)


def _launch(launch: Launch, kept: list[torch.Tensor]) -> tuple[Any, ...]:
    compiled, run = launch.compiled, launch.compiled.run
    if type(run).__module__ != _LAUNCHERS:
        raise Indirect
    if run.launch_pdl or run.global_scratch_size or run.profile_scratch_size or len(compiled.packed_metadata) != 3:
        raise Indirect
    warps, cluster, shared = compiled.packed_metadata
    kinds = list(compiled.src.signature.values())
    if cluster != 1 or len(kinds) != len(launch.values):
        raise Indirect
    slots = [_slot(value, kind, kept) for value, kind in zip(launch.values, kinds, strict=True) if kind != "constexpr"]
    _check_parameters(compiled.function, [slot[0] for slot in slots])
    arguments = (*(slot[1] for slot in slots), *((CONSTANT, 0, 0, 0),) * _SCRATCH)
    return compiled.function, launch.grid, 32 * warps, shared, bool(run.launch_cooperative_grid), arguments


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
