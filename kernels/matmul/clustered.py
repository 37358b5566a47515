"""The variant `clustered` of 16-bit products: few rows or columns and a long K, whose parts a cluster's programs add.

16 x 256 x 16384 is four tiles of 64 columns.  `split_descriptor` cuts K, writes 32 parts in fp32, and a second kernel
adds these; here eight programs of a tile add theirs in each other's shared memory: 6.8 us for 9.1, cuBLAS 8.7 (H200).
"""

import functools
import itertools
import math

import triton
from atlas.declaration import GPU, Capability, Case, Config, Variant

from kernels.common.cluster_sizes import clusters_at_once
from kernels.common.padded import padded
from kernels.common.products import describes, row_lengths

from .spaces import SPACE
from .split_spaces import microseconds_of_parts
from .tiled import empty_product, launch_pointers, tiled_kernel

CLUSTERED_SPACE = {"BLOCK_Q": (16, 32, 64), "BLOCK_K": (128, 256), "CLUSTER": (2, 3, 4, 6, 8)}
"""BLOCK_Q: of the short side of C.  CLUSTER: programs that share K; CUDA promises no more than 8 of every GPU."""

_LONG = 64
"""Elements of the long side of C that a tile has."""

_MOST, _LEAST_K = 64, 1024
"""The most elements of its short side, and the fewest of K."""

# Microseconds on an H200, fitted to 38 timings of 16 shapes from 16 x 256 x 1024 to 64 x 1024 x 16384: 3 % off in the
# mean and 10 % at worst.
_MULTIPLY, _LOAD, _READ = 3.0e-7, 6.4e-6, 2.7e4
"""As in split_spaces.py: for a multiplication-addition of a tile, for a byte of blocks, bytes read in one by an SM."""

_SEEN = 0.51
"""The share of the shorter, of reading and multiplying, that the longer does not hide."""

_CALL, _EXCHANGE, _EACH = 2.6, 0.155, 0.044
"""For a call, for 1024 sums that a program sends, and for each program of a cluster."""

_BEHIND = 1.3
"""What `split_descriptor` takes of its estimate at these shapes: 1.05 to 1.55."""

_PAYS = 0.95
"""The share of its time from which on the variant is left out."""

_NEAR = 1.06
"""How much longer than the best a config may take by the estimate and be worth a trial."""


def launch_clustered(a, b, tf32=False, *, config):
    """Launch the kernel, after copies of what is off 16 bytes; what is too short for a cluster goes to `tiled`."""
    c, k = empty_product(a, b), a.shape[1]
    if a.element_size() != 2 or not c.numel() or triton.cdiv(k, config["BLOCK_K"]) < config["CLUSTER"]:
        return launch_pointers(tiled_kernel, a, b, tf32, config=dict(zip(SPACE, (64, 64, 32, 8, 4, 3), strict=True)))
    from .hopper_clustered import multiply_in_clusters

    a, b = padded(a), padded(b)
    if c.shape[0] <= c.shape[1]:
        multiply_in_clusters(b.t(), a, c.t(), config=config)
    else:
        multiply_in_clusters(a, b.t(), c, config=config)
    return c


def clustered(launch) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n]."""
    return Variant(
        name="clustered",
        summary="Gluon: few rows or columns and a long K; programs of a cluster add its parts in shared memory",
        launch=launch,
        space=CLUSTERED_SPACE,
        default=_default,
        fits=_fits,
        handles=_handles,
        needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
        follows="split_descriptor",
    )


def _handles(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if problem.dtype not in ("bf16", "fp16"):
        return "for elements of 16 bits, which wgmma reads in either order"
    if reason := describes(problem, gpu):
        return reason
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
    m, n, k, (columns, block_k, size) = (
        problem["m"],
        problem["n"],
        problem["k"],
        (config[name] for name in CLUSTERED_SPACE),
    )
    steps = triton.cdiv(k, block_k)
    tiles = triton.cdiv(max(m, n), _LONG) * triton.cdiv(min(m, n), columns)
    if tiles > clusters_at_once(size, gpu.sms) or steps < 2 * size:
        return math.inf
    step = max(_LONG * columns * _MULTIPLY, (_LONG + columns) * 2 * _LOAD)
    busy = triton.cdiv(steps, size) * block_k * step
    moved = (m * k + k * n + m * n) * 2 / (_READ * gpu.sms)
    adding = _EXCHANGE * _LONG * columns / 1024 + _EACH * size
    return max(busy, moved) + _SEEN * min(busy, moved) + _CALL + adding


@functools.lru_cache(maxsize=4096)
def _best(problem: Case, gpu: GPU) -> tuple[float, tuple[int, ...]]:
    """The shortest time by the estimate, and its config's values."""
    every = itertools.product(*CLUSTERED_SPACE.values())
    fitting = (values for values in every if not _wasteful(values, problem))
    return min((_microseconds(dict(zip(CLUSTERED_SPACE, one, strict=True)), problem, gpu), one) for one in fitting)


def _wasteful(values: tuple[int, ...], problem: Case) -> str:
    """Why a config is not worth an estimate."""
    columns, block_k, _ = values
    if columns != next((one for one in CLUSTERED_SPACE["BLOCK_Q"] if one >= min(problem["m"], problem["n"])), _MOST):
        return "a tile that has not the short side of C, or twice that"
    return "fewer than four blocks on their way" if columns > 16 and block_k > 128 else ""


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot be the best; ``""`` for one worth a trial."""
    if reason := _wasteful(tuple(config[name] for name in CLUSTERED_SPACE), problem):
        return reason
    late = _microseconds(config, problem, gpu) > _NEAR * _best(problem, gpu)[0]
    return "others should end sooner" if late else ""


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    return dict(zip(CLUSTERED_SPACE, _best(problem, gpu)[1], strict=True))
