"""The roofs that a survey found: their names, and one that follows from another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MIXES = {"read": 0.0, "elementwise": 1 / 3, "copy": 1 / 2, "write": 1.0}
"""Memory roofs of the survey, and the share of their bytes that is written."""

MATMULS = {"fp8e4m3": "matmul_fp8", "fp8e5m2": "matmul_fp8"} | {
    dtype: f"matmul_{dtype}" for dtype in ("fp32", "tf32", "fp16", "bf16", "int8")
}
"""The matmul roof of each dtype; ``tf32`` is fp32 data multiplied by tensor cores, ``fp32`` is IEEE arithmetic."""

BF16X6 = "matmul_bf16x6"
"""The other roof of ``fp32``: a number is three bf16 terms, and six products of those are as exact as one by FMA."""


def matmuls_of(dtype: str) -> tuple[str, ...]:
    """Names of the roofs that a dtype's products may go by; of ``fp32`` two, of which the higher binds."""
    names = (MATMULS[dtype],) if dtype in MATMULS else ()
    return (*names, BF16X6) if dtype == "fp32" else names


@dataclass(frozen=True)
class Survey:
    """The roofs a survey document found, in GB/s and TFLOP/s by name, and the size of L2."""

    roofs: Mapping[str, float]
    l2_bytes: float = 0.0

    @staticmethod
    def of(document: Mapping[str, Any]) -> Survey:
        """The roofs of a document that have a value."""
        values = {row["name"]: row["value"] for row in document["roofs"] if row["value"]}
        return Survey(values, document["properties"].get("l2_bytes") or 0.0)


def with_bf16x6(roofs: Mapping[str, float]) -> dict[str, float]:
    """Matmul roofs by name and :data:`BF16X6`, a sixth of bf16's, where that is known."""
    sixth = {BF16X6: roofs["matmul_bf16"] / 6} if "matmul_bf16" in roofs else {}
    return dict(roofs) | sixth
