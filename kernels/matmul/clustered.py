"""The variant `clustered` of 16-bit products: few rows or columns and a long K, whose parts a cluster's programs add.

16 x 256 x 16384 is four tiles of 64 columns.  `split_descriptor` cuts K, writes 32 parts in fp32, and a second kernel
adds these; here eight programs of a tile add theirs in each other's shared memory: 6.8 us for 9.1, cuBLAS 8.7 (H200).
"""

import functools
import itertools
import math
from collections.abc import Callable

import triton
from atlas.declaration import GPU, Capability, Case, Config, Variant

from kernels.common.cluster_sizes import clusters_at_once
from kernels.common.padded import padded
from kernels.common.products import BARRIERS, LARGEST

from .spaces import SPACE
from .split_spaces import microseconds_of_parts, off_16_bytes
from .tiled import empty_product, launch_pointers, tiled_kernel

CLUSTERED_SPACE = {
    "BLOCK_P": (64, 128),
    "BLOCK_Q": (16, 32, 64, 128),
    "BLOCK_K": (64, 128, 256),
    "CLUSTER": (1, 2, 3, 4, 5, 6, 7, 8),
}
"""BLOCK_P, BLOCK_Q: of the long and of the short side of C.  CLUSTER: programs that share K; CUDA promises no more than
8 of every GPU."""

STAGE_BYTES = 184 * 1024
"""Shared memory for blocks of both operands."""

_MOST, _LEAST_K = 64, 1024
"""The most elements of its short side, and the fewest of K."""

# Microseconds on an H200, fitted to 38 timings of 16 shapes from 16 x 256 x 1024 to 64 x 1024 x 16384: 3 % off in the
# mean and 10 % at worst.
_MULTIPLY, _LOAD, _READ = 3.0e-7, 6.4e-6, 2.7e4
"""As in split_spaces.py: for a multiplication-addition of a tile, for a byte of blocks, bytes read in one by an SM."""

_SEEN = 0.51
"""The share of the shorter, of reading and multiplying, that the longer does not hide."""

_CALL, _STEP, _EXCHANGE, _EACH = 2.5, 0.02, 0.155, 0.044
"""For a call, for a block of K, for 1024 sums that a program sends, and for each program of a cluster."""

_BEHIND = 1.3
"""What `split_descriptor` takes of its estimate at these shapes: 1.05 to 1.55."""

_PAYS = 0.95
"""The share of its time from which on the variant is left out."""

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
    """Whether offsets into ``c`` [m, n] have the kernel's 31 bits, and each program has a block of K."""
    return 0 < c.numel() < LARGEST and triton.cdiv(k, config["BLOCK_K"]) >= config["CLUSTER"]


def clustered(launch: Callable, row_lengths: Callable[[Case], tuple[int, int, int]]) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n]; ``row_lengths(case)`` are those of A, of B and of C."""
    return Variant(
        name="clustered",
        summary="Gluon: few rows or columns and a long K; programs of a cluster add its parts in shared memory",
        launch=launch,
        space=CLUSTERED_SPACE,
        default=_default,
        fits=_fits,
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
    best = _best(problem, gpu)[0]
    if best == math.inf:
        return "K too short, or more tiles than clusters run at once"
    parts = microseconds_of_parts(row_lengths, problem, gpu)
    late = not parts or best > _PAYS * _BEHIND * parts
    return "to add parts through memory takes little longer, or there are none" if late else ""


def _microseconds(config: Config, problem: Case, gpu: GPU) -> float:
    """About how long a product takes; infinite where clusters do not run at once, or a program has no two blocks."""
    m, n, k = (problem[name] for name in "mnk")
    rows, columns, block_k, size = (config[name] for name in CLUSTERED_SPACE)
    steps = triton.cdiv(k, block_k)
    tiles = triton.cdiv(max(m, n), rows) * triton.cdiv(min(m, n), columns)
    own = triton.cdiv(steps, size)  # of a program
    held = _held(own, (rows + columns) * block_k * 2, gpu) if size == 1 else 1
    at_once = held * gpu.sms if size == 1 else clusters_at_once(size, gpu.sms)
    if tiles > at_once or steps < 2 * size:
        return math.inf
    step = max(rows * columns * _MULTIPLY, (rows + columns) * 2 * _LOAD)
    busy = triton.cdiv(tiles, gpu.sms) * own * block_k * step if size == 1 else own * block_k * step
    busy += _STEP * own
    moved = (m * k + k * n + m * n) * 2 / (_READ * gpu.sms)
    adding = _EXCHANGE * rows * columns / 1024 + _EACH * size if size > 1 else 0.0
    return max(busy, moved) + _SEEN * min(busy, moved) + _CALL + adding


def _held(steps: int, stage: int, gpu: GPU) -> int:
    """How many programs an SM has room for, each with a stage of so many bytes for each of its steps, if that fits."""
    return min(4, gpu.shared_bytes // (stages(steps, stage) * stage + BARRIERS))


def stages(steps: int, stage: int) -> int:
    """Stages of the ring of a program: for each step, of which there may be one, as far as there is room."""
    return min(STAGE_BYTES // stage, max(2, steps))


@functools.lru_cache(maxsize=4096)
def _best(problem: Case, gpu: GPU) -> tuple[float, tuple[int, ...]]:
    """The shortest time by the estimate, and its config's values."""
    every = itertools.product(*CLUSTERED_SPACE.values())
    fitting = (values for values in every if not _wasteful(values, problem))
    return min((_microseconds(dict(zip(CLUSTERED_SPACE, one, strict=True)), problem, gpu), one) for one in fitting)


def _wasteful(values: tuple[int, ...], problem: Case) -> str:
    """Why a config is not worth an estimate."""
    rows, columns, block_k, _ = values
    least = next((one for one in CLUSTERED_SPACE["BLOCK_Q"] if one >= min(problem["m"], problem["n"])), math.inf)
    if columns > least:
        return "a tile of more than twice the short side of C"
    if columns < min(least, 64):
        return "tiles of which the tensor cores' second operand is short"
    return "fewer than four blocks on their way" if 4 * (rows + columns) * block_k * 2 > STAGE_BYTES else ""


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot be the best; ``""`` for one worth a trial."""
    if reason := _wasteful(tuple(config[name] for name in CLUSTERED_SPACE), problem):
        return reason
    late = _microseconds(config, problem, gpu) > _NEAR * _best(problem, gpu)[0]
    return "others should end sooner" if late else ""


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    return dict(zip(CLUSTERED_SPACE, _best(problem, gpu)[1], strict=True))
