"""The variant `staged` of products of fp32 and tf32: blocks of any layout go through registers to tensor cores.

64 of 768 x 333 x 77 TN take 74 us so, 124 by FMA of copies, cuBLAS 91; 64 of 77 x 333 x 768 70, 160 and 121 (H200).
"""

import math

import torch
import triton
from atlas.declaration import GPU, Capability, Case, Config, Variant

from kernels.common.estimated import Estimated
from kernels.common.products import layout_of, precision_of_product
from kernels.matmul.bf16x6 import microseconds as bf16x6_microseconds
from kernels.matmul.bf16x6 import multiplies_terms
from kernels.matmul.swizzled import turns

from .estimates import count
from .spaces import SPACE, fma_microseconds_at_best, tf32_microseconds
from .terms import terms_microseconds
from .tiled import empty_products, launch_tiled

STAGED_SPACE = {
    "BLOCK_M": (64,),
    "BLOCK_N": (64, 128),
    "TAIL": (0, 16, 32),
    "BLOCK_K": (16, 32),
    "TURNED": (0, 1),
}
"""TAIL: columns of a tile beyond BLOCK_N, multiplied apart.  TURNED: tiles are of C's transpose."""

# BLOCK_N, TAIL, BLOCK_K: microseconds on an H200 of a block of K and of a tile of one SM; tiles on an SM at a time; the
# most registers of a thread.  Fitted to 58 timings of 27 shapes in fp32, 6 % off in the mean, and 17 of 13 in tf32.
_TILES = {
    "fp32": {
        (128, 0, 16): (0.53, 1.2, 2, None),
        (64, 0, 32): (0.52, 0.75, 3, 168),
        (64, 16, 16): (0.38, 1.0, 3, 168),
        (64, 32, 16): (0.46, 1.0, 3, 168),
    },
    # ptxas of Triton 3.6 crashes at tails, which take 9.1 us for 12.2 where 192 of 128 x 96 x 64 TN are multiplied.
    "tf32": {(64, 0, 32): (0.34, 0.6, 4, 128)},
}
_START = 3.0
"""Microseconds of a launch."""
_SINGLY = 0.06
"""The share of a block's time by which it is longer for each operand whose rows are off 16 elements."""
_PAYS = {"fp32": 0.95, "tf32": 0.8}
"""The share of others' time from which on the variant is left out; their estimate in tf32 is up to 1.4 times theirs."""
_NEAR = 1.1
"""How much longer than the best a config may take by the estimate and be worth a trial."""


def launch_staged(a, b, tf32=False, *, config):
    """Launch the kernel; other dtypes, and fewer rows or columns than a tile has, go to `tiled`."""
    c = empty_products(a, b)
    m, n = c.shape[:0:-1] if config["TURNED"] else c.shape[1:]
    few = m < config["BLOCK_M"] or n < config["BLOCK_N"]
    if a.dtype != torch.float32 or few or not (c.numel() and a.shape[2]):
        return launch_tiled(a, b, tf32, config=dict(zip(SPACE, (64, 64, 16, 8, 4, 2), strict=True)))
    from .hopper_staged import products

    precision = precision_of_product(a, tf32)
    dtype = "tf32" if precision == "tf32" else "fp32"
    registers = _TILES[dtype][_tile(config)][3]
    products(a, b, c, terms=2 if dtype == "tf32" else 3, registers=registers, config=config)
    return c


def staged() -> Variant:
    return Variant(
        name="staged",
        summary="Gluon: blocks in any layout go through registers, which make terms of bf16, to tensor cores",
        launch=launch_staged,
        space=STAGED_SPACE,
        default=_CHOICE.default,
        fits=_CHOICE.fits,
        handles=_handles,
        needs=frozenset({Capability.WGMMA}),
        follows="terms",
    )


def _tile(config: Config) -> tuple[int, int, int]:
    return config["BLOCK_N"], config["TAIL"], config["BLOCK_K"]


def _handles(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if problem.dtype not in _TILES:
        return "for fp32 and tf32; wgmma reads 16 bits in either order"
    if count((64, 64), problem) < gpu.sms:
        return "few tiles, which wait for what they read: 2 of 197 x 256 x 333 TN 12.6 us, 8.7 by `tiled` (H200)"
    best = _CHOICE.shortest(problem, gpu)
    if best == math.inf:
        return "fewer rows or columns than a tile has"
    late = best > _PAYS[problem.dtype] * _others_microseconds(problem, gpu)
    return "by another way it takes little longer" if late else ""


def _others_microseconds(problem: Case, gpu: GPU) -> float:
    """How long the soonest of the other variants should take."""
    if problem.dtype == "tf32":
        return tf32_microseconds(problem, gpu)
    times = [_START + fma_microseconds_at_best(problem, gpu), _START + terms_microseconds(problem, gpu)]
    return min(times if multiplies_terms(problem, gpu) else [*times, bf16x6_microseconds(problem, gpu)])


def _microseconds(config: Config, problem: Case, gpu: GPU) -> float:
    """About how long the products take; infinite where C is smaller than a tile."""
    m, n, k, layout = problem["m"], problem["n"], problem["k"], layout_of(problem)
    rows_a, rows_b = k if layout[0] == "N" else m, n if layout[1] == "N" else k
    if config["TURNED"]:
        m, n = n, m
    if m < config["BLOCK_M"] or n < config["BLOCK_N"]:
        return math.inf
    step, tile, programs, _ = _TILES[problem.dtype][_tile(config)]
    step *= 1 + _SINGLY * ((rows_a % 16 > 0) + (rows_b % 16 > 0))
    tiles = problem["b"] * triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"] + config["TAIL"])
    busy = turns(triton.cdiv(tiles, gpu.sms), programs, 1, programs)
    return _START + busy * (triton.cdiv(k, config["BLOCK_K"]) * step + tile)


def _wasteful(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config is not worth an estimate."""
    if _tile(config) not in _TILES.get(problem.dtype, ()):
        return "other blocks take longer, or registers spill"
    n, wide = problem["m" if config["TURNED"] else "n"], 64 + config["TAIL"]
    whole = config["TAIL"] and triton.cdiv(n, 64) * 64 <= triton.cdiv(n, wide) * wide
    return "columns that tiles without a tail cover" if whole else ""


_CHOICE = Estimated(STAGED_SPACE, _microseconds, _wasteful, _NEAR)
