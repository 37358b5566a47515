"""One problem of a kernel, and the short names of dtypes in which it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

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


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a short name such as ``"bf16"``; ``"tf32"`` is stored as float32."""
    return _TORCH_DTYPES[name]


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
