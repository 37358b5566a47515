"""The variant `clustered` of 16-bit products: few rows or columns, and parts of K that a cluster's programs add.

16 x 256 x 16384 is four tiles of 64 columns.  `split_descriptor` cuts K, writes 32 parts in fp32, and a second kernel
adds these; here eight programs of a tile add theirs in each other's shared memory: 6.8 us for 9.1, cuBLAS 8.7 (H200).
A cluster of one is for fewer rows than the tensor cores' first operand has, which here is the long side.
"""

import functools
import math
from collections.abc import Callable

import triton
from atlas.declaration import GPU, Capability, Case, Config, Variant

from kernels.common.cluster_sizes import clusters_at_once
from kernels.common.estimated import Estimated
from kernels.common.padded import padded
from kernels.common.products import LARGEST, layout_of

from .spaces import SPACE
from .split_spaces import off_16_bytes, times_of_split
from .tiled import empty_product, launch_pointers, tiled_kernel

CLUSTERED_SPACE = {"BLOCK_Q": (16, 32, 64, 128), "BLOCK_K": (64, 128, 256), "CLUSTER": (1, 2, 3, 4, 5, 6, 7, 8)}
"""BLOCK_Q: of the short side of C.  CLUSTER: programs that share K; CUDA promises no more than 8 of every GPU."""

BLOCK_P = 64
"""Of the long side of C.  Twice as many, by eight warps, took 1 to 30 % longer wherever they were timed."""

STAGE_BYTES = 184 * 1024
"""Shared memory for blocks of both operands."""

_MOST, _LEAST_K = 128, 512
"""The most elements of its short side, and the fewest of K: beyond them clusters win nothing, or were not timed."""

# Microseconds on an H200, fitted to 89 timings of 35 shapes, from 16 x 256 x 1024 to 128 x 4096 x 4096 and 2 x 1536 x
# 16384: 3 % off in the mean, and 17 % at worst.
_MULTIPLY, _LOAD, _READ = 2.1e-7, 5.2e-6, 2.87e4
"""As in split_spaces.py: for a multiplication-addition of a tile, for a byte of blocks, bytes read in one by an SM."""

_SEEN = 0.53
"""The share of the shorter, of reading and multiplying, that the longer does not hide."""

_CALL, _STEP, _CLUSTER, _EXCHANGE = 2.78, 0.054, 0.25, 0.096
"""For a call, for a block of K, for a cluster, and for 1024 sums that a program of it sends."""

_PAYS = 0.96
"""The share of its time from which on the variant is left out."""

_RESIDUAL = 2.0
"""Microseconds to read a residual, which begins when all is summed: 100 x 1024 x 1024 6.5 us for an estimate of 4.4."""

_NEAR = 1.06
"""How much longer than the best a config may take by the estimate and be worth a trial."""


def launch_clustered(a, b, tf32=False, *, config):
    """Launch the kernel, after copies of what is off 16 bytes; what is too short for a cluster goes to `tiled`."""
    c, k = empty_product(a, b), a.shape[1]
    if a.element_size() != 2 or not multiplies_in_clusters(c, k, config):
        return launch_pointers(tiled_kernel, a, b, tf32, config=dict(zip(SPACE, (64, 64, 32, 8, 4, 3), strict=True)))
    from .hopper_clustered import multiply_in_clusters

    multiply_in_clusters(padded(a), padded(b), c, config=config)
    return c


def multiplies_in_clusters(c, k, config):
    """Whether offsets into ``c`` [m, n] have the kernel's 31 bits, each program a block of K, and blocks room."""
    columns, block_k, size = (config[name] for name in CLUSTERED_SPACE)
    return 0 < c.numel() < LARGEST and triton.cdiv(k, block_k) >= size and _four(columns, block_k) <= STAGE_BYTES


def clustered(launch: Callable, row_lengths: Callable[[Case], tuple[int, int, int]]) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n]; ``row_lengths(case)`` are those of A, of B and of C."""
    return Variant(
        name="clustered",
        summary="Gluon: few rows or columns; programs of a cluster add their parts of K in shared memory",
        launch=launch,
        space=CLUSTERED_SPACE,
        default=_CHOICE.default,
        fits=_CHOICE.fits,
        handles=functools.partial(_handles, row_lengths),
        needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
        follows="split_descriptor",
    )


def _handles(row_lengths: Callable, problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if problem.dtype not in ("bf16", "fp16"):
        return "for elements of 16 bits, which wgmma reads in either order"
    if any(off_16_bytes(row_lengths(problem)[:2], problem)):
        return "rows of A or B are not aligned to 16 bytes"
    if min(problem["m"], problem["n"]) > _MOST or problem["k"] < _LEAST_K:
        return f"more than {_MOST} rows and columns, or less than {_LEAST_K} of K: not timed"
    best = _CHOICE.shortest(problem, gpu)
    if best == math.inf:
        return "K too short, or more tiles than clusters run at once"
    columns, _, size = _CHOICE.default(problem, gpu).values()
    split = times_of_split(row_lengths, problem, gpu)
    if split is None:
        return "tiles reach every SM"
    us, rows, parts = split
    by_columns = problem["m"] <= BLOCK_P and layout_of(problem)[0] == "T"
    if parts == size == 1 and columns >= BLOCK_P and not by_columns:
        return "`split_descriptor` has as large tiles, with all of K"
    best += _RESIDUAL * dict(problem.sizes).get("residual", False)
    late = best > _PAYS * _behind(rows, parts, by_columns, problem) * us
    return "by another way it takes little longer" if late else ""


def _behind(rows: int, parts: int, by_columns: bool, problem: Case) -> float:
    """What `split_descriptor` takes of its estimate, by rows of its tiles and parts of K: 48 timings, 5 % off.

    Few rows that lie by columns are slow to read: 48 x 8192 x 1024 TN takes 10.2 us, by a cluster of one 9.5.
    """
    if parts > 1:
        return 0.01 * parts + (1.33 if rows < 64 else 1.16 if min(problem["m"], problem["n"]) <= 64 else 1.06)
    return 1.4 if by_columns else 1.15 if rows < 64 else 0.97


def _microseconds(config: Config, problem: Case, gpu: GPU) -> float:
    """About how long a product takes; infinite where programs do not run at once, or one has no two blocks."""
    m, n, k = (problem[name] for name in "mnk")
    columns, block_k, size = (config[name] for name in CLUSTERED_SPACE)
    steps = triton.cdiv(k, block_k)
    tiles = triton.cdiv(max(m, n), BLOCK_P) * triton.cdiv(min(m, n), columns)
    if tiles > (gpu.sms if size == 1 else clusters_at_once(size, gpu.sms)) or steps < 2 * size:
        return math.inf
    own = triton.cdiv(steps, size)  # of a program
    step = block_k * max(BLOCK_P * columns * _MULTIPLY, (BLOCK_P + columns) * 2 * _LOAD)
    busy = own * (step + _STEP)
    moved = (m * k + k * n + m * n) * 2 / (_READ * gpu.sms)
    adding = _CLUSTER + _EXCHANGE * BLOCK_P * columns / 1024 if size > 1 else 0.0
    return max(busy, moved) + _SEEN * min(busy, moved) + _CALL + adding


def _wasteful(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config is not worth an estimate."""
    columns, block_k = config["BLOCK_Q"], config["BLOCK_K"]
    least = next((one for one in CLUSTERED_SPACE["BLOCK_Q"] if one >= min(problem["m"], problem["n"])), math.inf)
    if columns > least:
        return "a tile of more than twice the short side of C"
    if columns < min(least, 64):
        return "tiles of which the tensor cores' second operand is short"
    if _four(columns, block_k) > STAGE_BYTES:
        return "fewer than four blocks on their way"
    short = block_k < 128 and _four(columns, 128) <= STAGE_BYTES
    return "as many bytes on their way in more steps" if short else ""


def _four(columns: int, block_k: int) -> int:
    """Bytes of four blocks of both operands."""
    return 4 * (BLOCK_P + columns) * block_k * 2


_CHOICE = Estimated(CLUSTERED_SPACE, _microseconds, _wasteful, _NEAR)
