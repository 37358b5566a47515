"""Cases: the problems a kernel is run on.  Short names of dtypes, and what derives from tables of sizes.

:func:`sweep` and :func:`edge_cases` make cases of tables, :func:`normal` draws inputs, :func:`traffic` counts bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .hardware import GPU

DTYPES = ("fp32", "fp16", "bf16")
"""What most kernels take."""

_TORCH_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4m3": torch.float8_e4m3fn,
    "fp8e5m2": torch.float8_e5m2,
    "int8": torch.int8,
    "int32": torch.int32,
    "int64": torch.int64,
}

_NAMES = {dtype: name for name, dtype in _TORCH_DTYPES.items() if name != "tf32"}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a short name such as ``"bf16"``; ``"tf32"`` is stored as float32."""
    return _TORCH_DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of a torch dtype; float32 is ``"fp32"``."""
    return _NAMES[dtype]


def element_size(name: str) -> int:
    """Bytes of one element of the dtype with this short name."""
    return torch_dtype(name).itemsize


@dataclass(frozen=True)
class Case:
    """One problem: its dtype, its sizes and flags, and the reason it is there."""

    dtype: str
    sizes: tuple[tuple[str, Any], ...]
    reason: str = field(default="", compare=False)

    def __getitem__(self, name: str) -> Any:
        for key, value in self.sizes:
            if key == name:
                return value
        raise KeyError(f"case {self} has no size {name!r}")

    @property
    def label(self) -> str:
        """The sizes for a person: ``"m=4096 n=1024"``."""
        return " ".join(f"{key}={value}" for key, value in self.sizes)

    def __str__(self) -> str:
        return f"{self.label} {self.dtype}"

    def to_json(self) -> dict[str, Any]:
        """``{"dtype": "bf16", "sizes": {"m": 4096, …}}``, as documents hold it."""
        return {"dtype": self.dtype, "sizes": dict(self.sizes)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Case:
        """The case a document holds; the reason is not stored there."""
        return Case(document["dtype"], tuple(document["sizes"].items()))


def case(dtype: str, reason: str = "", **sizes: Any) -> Case:
    """``case("bf16", m=4096, n=1024)``: one problem, the sizes in the order given."""
    return Case(dtype, tuple(sizes.items()), reason)


def elements(problem: Case) -> int:
    """Elements of a tensor of the problem's sizes ``m`` and ``n``, or of the one of them that it has."""
    return math.prod(value for name, value in problem.sizes if name in ("m", "n"))


def _row(dtype: str, names: str, row: Sequence[Any], reason: str = "") -> Case:
    """The case of a row of a table; a dict at its end holds sizes and flags that are no column's."""
    *values, last = row
    flags = last if isinstance(last, dict) else {}
    values = values if isinstance(last, dict) else row
    return case(dtype, reason, **dict(zip(names.split(), values, strict=True)), **flags)


def sweep(
    names: str,
    table: Mapping[str, Iterable[Sequence[Any]]],
    *,
    tensors: int,
    elements: Callable[[Case], int] = elements,
) -> Callable[[GPU], list[Case]]:
    """``cases`` of a declaration: those of a table that fit the GPU.

    ``names`` are the columns (``"m n"``), and the rows stand by dtype: ``{"bf16": ((128, 1024), (4096, 1000))}``.  A
    dict at a row's end holds what only some cases have: ``(4096, 50257, {"pitch": 50304})``.  A case fits where
    ``tensors`` tensors of its ``elements`` (m n) take at most an eighth of the GPU's memory.
    """

    def cases(gpu: GPU) -> list[Case]:
        found = [_row(dtype, names, row) for dtype, rows in table.items() for row in rows]
        return [c for c in found if tensors * elements(c) * element_size(c.dtype) <= gpu.memory_bytes // 8]

    return cases


def edge_cases(names: str, rows: Iterable[Sequence[Any]], dtypes: Iterable[str] = DTYPES) -> tuple[Case, ...]:
    """The rows of a table in every dtype; columns as in :func:`sweep`, and the reason of the case at each row's end."""
    rows = tuple(rows)
    return tuple(_row(dtype, names, row, reason) for dtype in dtypes for *row, reason in rows)


def normal(problem: Case, device: Any, generator: torch.Generator | None) -> Callable[..., torch.Tensor]:
    """``draw(*shape)``, which gives a tensor of the case's dtype with normal numbers."""

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)

    return draw


def traffic(*names: str) -> Callable[[Case], dict[str, int]]:
    """``bytes`` of a pass that reads or writes each of these tensors once, all of m n elements in the case's dtype."""
    return lambda problem: dict.fromkeys(names, elements(problem) * element_size(problem.dtype))
