"""Guard bands: every tensor a launch reads or writes lies between bands of a known pattern.

A store outside an output lands in a band instead of another tensor (on the interpreter: instead of the process's own
memory) and is found there.  Outputs are prefilled with the same pattern, so an element that was never written is found
too.  For floating types the pattern is a NaN with a payload no arithmetic produces: what is read outside an input, or
from scratch memory that was never written, shows in the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

ALIGNMENT = 512
"""Bytes: what torch's CUDA allocator gives.  A placed tensor keeps its address modulo this, so its alignment."""

_BAND_ROWS = 256  # the tallest tile of any space: a missing mask oversteps by less than one tile
_SMALLEST_BAND, _LARGEST_BAND = 2**18, 2**23  # bytes: 32768 elements of 8 bytes, and what is cheap to fill and check

# Two patterns for each dtype.  A result that equals the first after one run and the second after another was not
# written.  Floating types: quiet NaNs with a payload.  Others: arbitrary, for where no value is out of the ordinary.
_PATTERNS = {
    torch.float64: (0x7FF85A5AA5A5C3C3, 0x7FF8A5A55A5A3C3C),
    torch.float32: (0x7FC5A5A5, 0x7FDA5A5A),
    torch.float16: (0x7E5A, 0x7EA5),
    torch.bfloat16: (0x7FD5, 0x7FEA),
    torch.float8_e4m3fn: (0x7F, 0xFF),
    torch.float8_e5m2: (0x7E, 0x7F),
    torch.bool: (0, 1),
}
_INTEGER_PATTERNS = (0x5A, 0x25)
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# A band of an integer input is not to be a wild address when a kernel reads it as an index.
_INDEX_PATTERN = 1

_UNINITIALISED = (
    torch.empty,
    torch.empty_like,
    torch.empty_strided,
    torch.Tensor.new_empty,
    torch.Tensor.new_empty_strided,
)
_INITIALISED = (
    torch.zeros,
    torch.zeros_like,
    torch.Tensor.new_zeros,
    torch.ones,
    torch.ones_like,
    torch.Tensor.new_ones,
    torch.full,
    torch.full_like,
    torch.Tensor.new_full,
)


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory read as integers, so that NaNs compare."""
    return tensor.view(_WORDS[tensor.element_size()])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype agree bit by bit."""
    return torch.equal(words(a), words(b))


def extent(tensor: torch.Tensor) -> int:
    """Elements from the first to the last that the tensor's strides reach, both included."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def span(tensor: torch.Tensor) -> torch.Tensor:
    """The memory between the tensor's first and last element as a vector, gaps of its strides included."""
    return tensor.as_strided((extent(tensor),), (1,), tensor.storage_offset())


@dataclass(frozen=True)
class Placed:
    """One tensor between its bands; ``buffer`` is the words of bands and tensor together."""

    tensor: torch.Tensor
    buffer: torch.Tensor
    first: int
    pattern: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The addresses of the tensor's first byte and of the one after its last."""
        start = self.tensor.data_ptr()
        return start, start + extent(self.tensor) * self.tensor.element_size()

    def overstepped(self) -> str:
        """What was stored outside the tensor, or ``""``."""
        end = self.first + extent(self.tensor)
        before = _changed(self.buffer[: self.first], self.pattern)
        after = _changed(self.buffer[end:], self.pattern)
        parts = []
        if before is not None:
            parts.append(f"{before[0]} element(s) before its start, the nearest {self.first - before[2]} before it")
        if after is not None:
            parts.append(f"{after[0]} element(s) past its end, the first {after[1] + 1} past it")
        return " and ".join(parts)

    def holds_pattern(self, output: torch.Tensor) -> torch.Tensor:
        """A mask, shaped as ``output`` (a view of this tensor), of the elements that still hold the pattern."""
        return words(output) == self.pattern


def _changed(band: torch.Tensor, pattern: int) -> tuple[int, int, int] | None:
    low, high = band.aminmax()  # on a host 20 times as fast as a comparison
    if low.item() == pattern == high.item():
        return None
    at = (band != pattern).nonzero().flatten()
    return len(at), int(at[0]), int(at[-1])


def place(tensor: torch.Tensor, run: int, keep: bool, index_like: bool = False) -> Placed:
    """A tensor of the same shape, strides, dtype and address modulo :data:`ALIGNMENT`, between guard bands.

    ``run`` (0 or 1) picks the pattern.  ``keep`` copies the values; otherwise the tensor is filled with the pattern.
    ``index_like`` bands hold a small number, so that an index read from one is not a wild address.
    """
    size = tensor.element_size()
    rows = max(tensor.stride(), default=1)
    band = min(max(_BAND_ROWS * rows * size, _SMALLEST_BAND), _LARGEST_BAND)
    band = -(-band // ALIGNMENT) * ALIGNMENT
    length = extent(tensor)
    pattern = _PATTERNS.get(tensor.dtype, _INTEGER_PATTERNS)[run]
    if index_like and not tensor.is_floating_point():
        pattern = _INDEX_PATTERN
    count = length + (2 * band + ALIGNMENT) // size
    buffer = torch.empty(count, dtype=_WORDS[size], device=tensor.device).fill_(pattern)
    first = (band + (tensor.data_ptr() - buffer.data_ptr() - band) % ALIGNMENT) // size
    if keep:
        buffer[first : first + length].copy_(words(span(tensor)))
    placed = buffer.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), first)
    return Placed(placed, buffer, first, pattern)


class Guard(TorchFunctionMode):
    """Inside, what torch allocates for Python code (``torch.empty`` and its kin) lies between guard bands.

    A launcher allocates its outputs and scratch memory itself; this sees the allocations without its help.  Empty
    tensors and meta tensors are left alone.
    """

    def __init__(self, run: int):
        super().__init__()
        self.run = run
        self.inputs: dict[str, Placed] = {}
        self.allocated: list[Placed] = []

    def place_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The same inputs with every tensor moved between guard bands; other values pass as they are."""
        # The pattern that outputs do not have: else what is read past an input could be stored past an output unseen.
        for name, value in inputs.items():
            if isinstance(value, torch.Tensor) and value.numel():
                self.inputs[name] = place(value.detach(), 1 - self.run, keep=True, index_like=True)
        return dict(inputs) | {name: placed.tensor for name, placed in self.inputs.items()}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function not in _UNINITIALISED and function not in _INITIALISED:
            return result
        if not result.numel() or result.device.type == "meta" or result.dtype.is_complex:
            return result
        self.allocated.append(place(result, self.run, keep=function in _INITIALISED))
        return self.allocated[-1].tensor

    def of(self, tensor: torch.Tensor) -> Placed | None:
        """The allocation a result lies in, or None where torch itself allocated it."""
        address = tensor.untyped_storage().data_ptr()
        return next((p for p in self.allocated if p.buffer.untyped_storage().data_ptr() == address), None)

    def changed_inputs(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Of each input that a launch changed, a mask of the changed elements; ``inputs`` are the originals."""
        found = {}
        for name, placed in self.inputs.items():
            if not same_bits(span(placed.tensor), span(inputs[name].detach())):
                found[name] = words(placed.tensor) != words(inputs[name].detach())
        return found

    def overstepped(self, outputs: tuple[torch.Tensor, ...], names: tuple[str, ...]) -> str:
        """Every tensor that was stored outside of, by its name, or ``""``."""
        known = {p.buffer.untyped_storage().data_ptr(): f"input {name}" for name, p in self.inputs.items()}
        for name, output in zip(names, outputs, strict=False):
            known[output.untyped_storage().data_ptr()] = name
        parts = []
        for placed in [*self.inputs.values(), *self.allocated]:
            what = placed.overstepped()
            if what:
                name = known.get(placed.buffer.untyped_storage().data_ptr(), f"scratch {tuple(placed.tensor.shape)}")
                parts.append(f"stored outside {name}: {what}")
        return "; ".join(parts)
