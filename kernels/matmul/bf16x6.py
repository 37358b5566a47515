"""The variant `bf16x6` of products of fp32: its tiles, how long they should take, and where FMA takes longer."""

import functools
from collections.abc import Callable

import triton
from atlas.declaration import GPU, Capability, Case, Config, Variant

from .swizzled import microseconds as microseconds_of_fma

BF16X6_SPACE = {
    "BLOCK_N": (64, 128),
    "BLOCK_K": (32, 64),
    "GROUP_M": (4, 8),
    "STAGES": (2, 3, 4, 6),
}

_ROWS = 128
"""Rows of a tile."""

_STAGES = {(64, 32): 6, (64, 64): 3, (128, 32): 4, (128, 64): 2}
"""By BLOCK_N and BLOCK_K: as many as there is room for."""

# Microseconds on an H200, of one SM or of all: products of bf16 as `gluon` makes them, in hopper_spaces.py.
_MULTIPLY = {128: 6 * 3.2e-7, 64: 6 * 4.25e-7}
"""For one multiplication-addition of fp32, by BLOCK_N."""
_ROUND = 2.0
"""That a tile takes beyond its products."""
_CALLS, _BYTES = 6.0, 3.0e6
"""For both operands' terms and a start; bytes that all SMs write and read in one."""
_PAYS = 0.85
"""The share of FMA's time from which on the variant is left out."""


def bf16x6(launch: Callable, handles: Callable[[Case, GPU], str]) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n], or a batch of them."""
    return Variant(
        name="bf16x6",
        summary="Gluon: fp32 as three terms of bf16, six products of them on tensor cores, as exact as by FMA",
        launch=launch,
        space=BF16X6_SPACE,
        default=_default,
        fits=_fits,
        handles=handles,
        needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
        follows="swizzled",
    )


def multiplies_terms(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if problem.dtype != "fp32":
        return "for fp32"
    if Capability.WGMMA not in gpu.capabilities:
        return "written for Hopper"
    late = _best(problem, gpu)[0] > _PAYS * microseconds_of_fma(problem, gpu)
    return "FMA should end sooner than terms are made and multiplied" if late else ""


def _count(block_n: int, problem: Case) -> int:
    """Tiles of all products."""
    batch = dict(problem.sizes).get("b", 1)
    return batch * triton.cdiv(problem["m"], _ROWS) * triton.cdiv(problem["n"], block_n)


def _microseconds(block_n: int, problem: Case, gpu: GPU) -> float:
    """About how long a product takes with its terms: SMs take tiles in step."""
    m, n, k, batch = problem["m"], problem["n"], problem["k"], dict(problem.sizes).get("b", 1)
    terms = _CALLS + 10 * batch * (m * k + k * n) / _BYTES  # 4 bytes are read and 6 written
    of_one = _ROWS * block_n * k * _MULTIPLY[block_n] + _ROUND
    return terms + triton.cdiv(_count(block_n, problem), gpu.sms) * of_one


@functools.lru_cache(maxsize=4096)
def _best(problem: Case, gpu: GPU) -> tuple[float, int]:
    """The shortest time by the estimate, and its BLOCK_N."""
    return min((_microseconds(block_n, problem, gpu), block_n) for block_n in _MULTIPLY)


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot be the best; ``""`` for one worth a trial."""
    if config["STAGES"] != _STAGES[config["BLOCK_N"], config["BLOCK_K"]]:
        return "not as many stages as there is room for"
    if config["GROUP_M"] != 8 and _count(128, problem) <= 4 * gpu.sms:
        return "an order that does not matter"
    late = _microseconds(config["BLOCK_N"], problem, gpu) > 1.3 * _best(problem, gpu)[0]
    return "the other tile should end sooner" if late else ""


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    block_n = _best(problem, gpu)[1]
    return dict(zip(BF16X6_SPACE, (block_n, 32, 8, _STAGES[block_n, 32]), strict=True))
