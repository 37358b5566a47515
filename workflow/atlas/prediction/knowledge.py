"""What is known of a GPU's speed: the roofs of its survey, or its datasheet as far as surveyed GPUs reach theirs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..declaration import GPU, Capability
from ..results.surveyed import MATMULS, MIXES, Survey

Block = Mapping[str, Any]
"""Of ``config/gpus.yaml``."""

_LANES = {75: 64, 80: 64}
"""Multiplications of fp32 that an SM begins in a clock; 128 on the others."""

LEAST_SPREAD = 0.03
"""By which a roof of a datasheet may be off, as a logarithm, however well surveyed GPUs agree on their share."""


@dataclass(frozen=True)
class Known:
    """Of one GPU.

    ``survey`` holds its roofs, ``floor_us`` is what an empty kernel takes, ``issue`` the SMs times their clock in GHz:
    how fast work goes that is bound neither by memory nor by products.  ``spread`` is the standard error of the roofs'
    logarithm, ``how`` where they are from: ``survey`` or ``datasheet``.
    """

    gpu: GPU
    survey: Survey
    floor_us: float
    issue: float
    spread: float
    how: str

    def through(self, matrix_instruction: str | None, dtype: str) -> tuple[Survey, str]:
        """The roofs for a dtype, and the path of its products: ``tensor cores``, or ``FMA`` where they are fp32's.

        By what a build found that ``tl.dot`` became; where nothing was built, by what the architecture can do.
        """
        name = MATMULS.get(dtype, "")
        cores = Capability.TENSOR_CORES in self.gpu.capabilities and dtype != "fp32"
        if matrix_instruction in ("fma", "mma", "wgmma", "tcgen05"):
            cores = matrix_instruction != "fma"
        if cores or not name:
            return self.survey, "tensor cores" if name else ""
        roofs = dict(self.survey.roofs)
        if dtype == "fp32":
            roofs.pop("matmul_bf16", None)  # of which six products would be one of fp32
        roofs[name] = roofs.get("matmul_fp32", 0.0)
        return Survey({key: value for key, value in roofs.items() if value}, self.survey.l2_bytes), "FMA"


def known(
    gpu: GPU, block: Block, survey: Mapping[str, Any] | None, others: Mapping[str, tuple[Block, Mapping[str, Any]]]
) -> Known:
    """What is known of a GPU by its own survey's document, or without one by ``others``: blocks and surveys by name.

    Raises ValueError where there is neither.
    """
    issue = _issue(gpu, block)
    if survey is not None:
        own = Survey.of(survey)
        return Known(gpu, own, own.roofs["empty_kernel"], issue, 0.0, "survey")
    if not others:
        raise ValueError(
            f"{gpu.name} has no survey, and no other GPU has one that says what share of a peak is reached"
        )
    reached = [(_peaks(its_block), Survey.of(document).roofs) for its_block, document in others.values()]
    roofs, spreads = {}, [LEAST_SPREAD]
    for name, peak in _peaks(block).items():
        shares = [roofs_of[name] / peaks[name] for peaks, roofs_of in reached if name in peaks and name in roofs_of]
        shares = shares or [roofs_of["matmul_bf16"] / peaks["matmul_bf16"] for peaks, roofs_of in reached]
        logarithms = [math.log(share) for share in shares]
        roofs[name] = peak * math.exp(fmean(logarithms))
        spreads.append((max(logarithms) - min(logarithms)) / 2)
    floor = fmean(roofs_of["empty_kernel"] for _, roofs_of in reached)
    return Known(gpu, Survey(roofs, gpu.l2_bytes), floor, issue, max(spreads), "datasheet")


def _peaks(block: Block) -> dict[str, float]:
    """A datasheet's peaks by the names of the roofs: in GB/s and TFLOP/s."""
    sheet = block["datasheet"]
    peaks = dict.fromkeys(MIXES, float(sheet["bandwidth_gb_per_s"]))
    return peaks | {f"matmul_{dtype}": float(rate) for dtype, rate in sheet.get("tflop_per_s", {}).items()}


def _issue(gpu: GPU, block: Block) -> float:
    """SMs times GHz: fp32's peak is two operations of each lane in each clock."""
    return 1e3 * block["datasheet"]["tflop_per_s"]["fp32"] / (2 * _LANES.get(gpu.arch, 128))
