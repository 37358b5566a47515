"""The variant `clustered` of 16-bit products: few tiles, a light program for each, or a cluster that shares a long K.

Six products of 128 x 128 x 4096 are 24 tiles of 64 x 64: as many programs keep few SMs busy for long.  Clusters of four
add their parts of K in shared memory: 8.0 us for 10.8, cuBLAS 9.4 (H200).
"""

import math
from collections.abc import Callable

import triton
from atlas.declaration import GPU, Capability, Case, Config, Variant

from kernels.common.batches import padded_batches
from kernels.common.cluster_sizes import clusters_at_once
from kernels.common.estimated import Estimated
from kernels.common.products import layout_of
from kernels.matmul.clustered import BLOCK_P, multiplies_in_clusters

from .spaces import SPACE, copies, described_microseconds
from .tiled import empty_products, launch_tiled

CLUSTERED_SPACE = {"BLOCK_Q": (32, 64), "BLOCK_K": (64, 128), "CLUSTER": (1, 2, 3, 4, 5, 6, 7, 8)}
"""BLOCK_Q: of C's rows; of its columns a tile has ``BLOCK_P``.  CLUSTER: programs that share K."""

_LEAST, _LONGEST = 32, 1024
"""Rows and columns of C, of which more were timed, and elements of K of a program, of which more were not."""

# Microseconds on an H200, fitted to 116 timings of 28 shapes, of which 14 in this orientation: 5 % off in the mean.
_CALL, _STEP, _LOAD, _READ = 2.44, 0.094, 6.4e-6, 2.87e4
"""For a call, for a block of K, for a byte of blocks, bytes read in one by an SM."""

_SEEN = 0.55
"""The share of the shorter, of reading and multiplying, that the longer does not hide."""

_EXCHANGE, _SINGLY = 0.225, 0.5
"""For 1024 sums that a program sends; for rows of C off 16 bytes."""

_LONG, _BEHIND, _BEHIND_BY_COLUMNS = 512, 1.05, 1.15
"""K from which on other variants take longer than estimated, and how much: the more where A lies by columns."""

_PAYS, _NEAR = 0.9, 1.06
"""The share of their time from which on the variant is left out; how much longer a config worth a trial may take."""


def launch_clustered(a, b, tf32=False, *, config):
    """Launch the kernel, after copies of what is off 16 bytes; what is too short for a cluster goes to `tiled`."""
    c, k = empty_products(a, b), a.shape[2]
    if a.element_size() != 2 or not multiplies_in_clusters(c, k, config):
        return launch_tiled(a, b, tf32, config=dict(zip(SPACE, (64, 64, 32, 8, 4, 3), strict=True)))
    from kernels.matmul.hopper_clustered import multiply_batches_in_clusters

    multiply_batches_in_clusters(*padded_batches(a, b), c, config=config)
    return c


def clustered(launch: Callable) -> Variant:
    return Variant(
        name="clustered",
        summary="Gluon: few tiles, a light program for each; or a cluster adds its parts of K in shared memory",
        launch=launch,
        space=CLUSTERED_SPACE,
        default=_CHOICE.default,
        fits=_CHOICE.fits,
        handles=_handles,
        needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
        follows="direct",
    )


def _handles(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if problem.dtype not in ("bf16", "fp16"):
        return "for elements of 16 bits, which wgmma reads in either order"
    if min(problem["m"], problem["n"]) <= _LEAST:
        return f"no more than {_LEAST} rows or columns: not timed"
    if reason := copies(problem, gpu):
        return reason
    best = _CHOICE.shortest(problem, gpu)
    if best == math.inf:
        return "K too long, or more tiles than programs or clusters run at once"
    late = best > _PAYS * _behind(problem) * described_microseconds(problem, gpu)
    return "by another way it takes little longer" if late else ""


def _behind(problem: Case) -> float:
    """What `direct` and `persistent` take of their estimate."""
    if problem["k"] < _LONG:
        return 1.0
    return _BEHIND_BY_COLUMNS if layout_of(problem)[0] == "T" else _BEHIND


def _microseconds(config: Config, problem: Case, gpu: GPU) -> float:
    """About how long the products take, copies apart; infinite where programs do not run at once, or have no block."""
    b, m, n, k = (problem[name] for name in "bmnk")
    rows, block_k, size = (config[name] for name in CLUSTERED_SPACE)
    tiles = b * triton.cdiv(n, BLOCK_P) * triton.cdiv(m, rows)
    steps = triton.cdiv(k, block_k)
    own = triton.cdiv(steps, size)  # of a program
    if tiles > (gpu.sms if size == 1 else clusters_at_once(size, gpu.sms)) or steps < size or own * block_k > _LONGEST:
        return math.inf
    busy = own * (block_k * (BLOCK_P + rows) * 2 * _LOAD + _STEP)
    moved = b * (m * k + k * n + m * n) * 2 / (_READ * gpu.sms)
    adding = _EXCHANGE * BLOCK_P * rows / 1024 if size > 1 else 0.0
    writing = _SINGLY if n % 8 else 0.0
    return max(busy, moved) + _SEEN * min(busy, moved) + _CALL + adding + writing


def _wasteful(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config is not worth an estimate."""
    return "half of each block is beyond K" if config["BLOCK_K"] > 64 >= problem["k"] else ""


_CHOICE = Estimated(CLUSTERED_SPACE, _microseconds, _wasteful, _NEAR)
