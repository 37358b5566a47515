"""The variant `bf16x6` of products of fp32: its tiles, how long they should take, and where FMA takes longer."""

import functools
from collections.abc import Callable

import triton
from atlas.declaration import GPU, Capability, Case, Config, Variant

from .swizzled import microseconds as microseconds_of_fma

BF16X6_SPACE = {
    "BLOCK_N": (64, 128),
    "BLOCK_K": (32,),
    "GROUP_M": (4, 8),
    "STAGES": (4, 6),
}

_ROWS = 128
"""Rows of a tile."""

_STAGES = {64: 6, 128: 4}
"""By BLOCK_N: as many as there is room for."""

# Microseconds on an H200, of one SM or of all, fitted to 20 timings of 13 shapes: 3 % off in the mean, 7 at most.
_MULTIPLY = {128: 2.0e-6, 64: 2.15e-6}
"""For one multiplication-addition of fp32, by BLOCK_N."""
_ROUND = 1.0
"""That a tile takes beyond its products."""
_CALLS, _BYTES = 12.0, 3.5e6
"""For both operands' terms and a start; bytes that all SMs write and read in one."""
_FINISH, _FINISHED = 2.5, 3.0e6
"""For a second kernel with the epilogue; bytes that it reads and writes in one."""
_LEAST_K = 128
"""Shorter sums were not timed: writing C takes most of their time."""
_PAYS = 0.95
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


def multiplies_terms(problem: Case, gpu: GPU, finishes: bool = False) -> str:
    """Why the variant does not take a case; it ``finishes`` where an epilogue goes over the product once more."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if problem.dtype != "fp32":
        return "for fp32"
    if Capability.WGMMA not in gpu.capabilities:
        return "written for Hopper"
    if problem["k"] < _LEAST_K:
        return "a short sum, beside which writing takes most of the time"
    finish = _FINISH + 8 * problem["m"] * problem["n"] / _FINISHED if finishes else 0.0
    late = _best(problem, gpu)[0] + finish > _PAYS * microseconds_of_fma(problem, gpu)
    return "FMA should end sooner than terms are made and multiplied" if late else ""


def _count(block_n: int, problem: Case) -> int:
    """Tiles of all products."""
    batch = dict(problem.sizes).get("b", 1)
    return batch * triton.cdiv(problem["m"], _ROWS) * triton.cdiv(problem["n"], block_n)


def _microseconds(block_n: int, problem: Case, gpu: GPU) -> float:
    """About how long a product takes with its terms: SMs take tiles in step."""
    m, n, k, batch = problem["m"], problem["n"], triton.cdiv(problem["k"], 32) * 32, dict(problem.sizes).get("b", 1)
    terms = _CALLS + 10 * batch * (m * k + k * n) / _BYTES  # 4 bytes are read and 6 written
    of_one = _ROWS * block_n * k * _MULTIPLY[block_n] + _ROUND
    return terms + triton.cdiv(_count(block_n, problem), gpu.sms) * of_one


def microseconds(problem: Case, gpu: GPU) -> float:
    """About how long a product takes with its terms, by the better tile."""
    return _best(problem, gpu)[0]


@functools.lru_cache(maxsize=4096)
def _best(problem: Case, gpu: GPU) -> tuple[float, int]:
    """The shortest time by the estimate, and its BLOCK_N."""
    return min((_microseconds(block_n, problem, gpu), block_n) for block_n in _MULTIPLY)


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot be the best; ``""`` for one worth a trial."""
    if config["STAGES"] != _STAGES[config["BLOCK_N"]]:
        return "not as many stages as there is room for"
    if config["GROUP_M"] != 8 and _count(128, problem) <= 4 * gpu.sms:
        return "an order that does not matter"
    late = _microseconds(config["BLOCK_N"], problem, gpu) > 1.15 * _best(problem, gpu)[0]
    return "the other tile should end sooner" if late else ""


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    block_n = _best(problem, gpu)[1]
    return dict(zip(BF16X6_SPACE, (block_n, 32, 8, _STAGES[block_n]), strict=True))
