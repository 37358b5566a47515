"""The variant `clustered` of 8-bit products: few tiles of C, whose parts of k a cluster's programs add.

`split_descriptor` writes parts of sums to memory, and a second kernel adds these.  Here programs of a tile add theirs
in each other's shared memory, or have all of k: 128 x 2048 x 4096 of int8 takes 7.2 us for 11.1 (H200).
"""

import math

import torch
import triton
from atlas.declaration import GPU, Capability, Case, Config, Variant
from atlas.declaration.products import describable

from kernels.common.cluster_sizes import clusters_at_once
from kernels.common.estimated import Estimated

from .spaces import SPACE, default, default_split, handles, promotes, splits
from .tiled import empty_product, kind_of_scales, launch_tiled

CLUSTERED_SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (16, 32, 64, 128),
    "CLUSTER": (1, 2, 3, 4, 5, 6, 7, 8),
}
"""A tile, 64 one way, and the programs that share its k."""

_LONG, _STEP = 64, 256
"""Elements of that side, and of k that come at a time."""

_LEAST_K, _MOST_K = 1024, 16384
"""The elements of k that it is for; timed up to 8192."""

_ALONE_K = 2048
"""The least where a program has all of k."""

_MOST_MB = 24
"""The most megabytes of A, B and C; timed up to 17.  Memory binds the variants alike where there are more."""

# Microseconds on an H200, fitted to 66 times of 32 products, off by 5 %: of a call, of a program to bring a KB, of all
# to bring a MB, of a MB from memory, the share of the shorter of bringing and memory, of a program alone to write, and
# of a cluster to add 64 x 64 sums.
_CALL, _BRING, _L2, _MEMORY, _SEEN, _ALONE, _ADD = 3.2, 0.0058, 0.032, 0.227, 0.55, 0.6, 0.75

# The same of the others, off by 6 %: of a call, of a MB from memory, the share of the shorter of memory and products,
# of products of 64 x 128 x 256, and of a second kernel and its MB of parts.
_OTHERS_CALL, _OTHERS_MEMORY, _OTHERS_SEEN = 3.85, 0.247, 0.4
_OTHERS_STEP = {"int8": 0.5, "promoted": 0.63, "fast": 0.315}
_OTHERS_ADD, _OTHERS_PARTS = 1.7, 0.4

_PAYS = 0.96
"""The share of their time from which on the variant is left out."""

_NEAR = 1.08
"""How much longer than the best a config may take by the estimate and be worth a trial."""


def launch_clustered(a, b, scale_a, scale_b, bias, fast, out_dtype=torch.bfloat16, *, config):
    """Launch the kernel; what the copy engine cannot read, or is too short for a cluster, goes through pointers."""
    c, k = empty_product(a, b, scale_a, out_dtype), a.shape[1]
    short = triton.cdiv(k, _STEP) < config["CLUSTER"]
    if short or not (c.numel() and describable(a) and describable(b.t())):
        plain = dict(zip(SPACE, (64, 64, 128, 8, 4, 3), strict=True))
        return launch_tiled(a, b, scale_a, scale_b, bias, fast, out_dtype, config=plain)
    from .hopper_clustered import multiply_in_clusters

    multiply_in_clusters(
        a, b, c, scale_a, scale_b, bias,
        scales=kind_of_scales(scale_a), promote=not (fast or a.dtype == torch.int8), config=config,
    )  # fmt: skip
    return c


def clustered() -> Variant:
    """The variant."""
    return Variant(
        name="clustered",
        summary="Gluon: few tiles; programs of a cluster have parts of K and add them up in shared memory",
        launch=launch_clustered,
        space=CLUSTERED_SPACE,
        default=_CHOICE.default,
        fits=_CHOICE.fits,
        handles=_handles,
        needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
        follows="split_descriptor",
    )


def _handles(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if reason := handles(problem, gpu):
        return reason
    if problem["k"] % 16:
        return "rows of A and B are not aligned to 16 bytes"
    if not _LEAST_K <= problem["k"] <= _MOST_K:
        return f"sums over less than {_LEAST_K} elements, or more than {_MOST_K}: not timed"
    if _megabytes(problem) > _MOST_MB:
        return f"more than {_MOST_MB} MB: not timed"
    best = _CHOICE.shortest(problem, gpu)
    if best == math.inf:
        return "more tiles than clusters run at once"
    late = best > _PAYS * _microseconds_of_others(problem, gpu)
    return "others take little longer, or end sooner" if late else ""


def _microseconds(config: Config, problem: Case, gpu: GPU) -> float:
    """About how long a product takes; infinite where clusters do not run at once, or a program has no two steps."""
    (m, n, k), (rows, columns, size) = _sizes(problem), (config[name] for name in CLUSTERED_SPACE)
    steps, tiles = triton.cdiv(k, _STEP), triton.cdiv(m, rows) * triton.cdiv(n, columns)
    if tiles > (clusters_at_once(size, gpu.sms) if size > 1 else gpu.sms) or steps < 2 * size:
        return math.inf
    brought = triton.cdiv(steps, size) * (rows + columns) * _STEP / 1000
    read = brought * (_BRING + tiles * size * _L2 / 1000)
    end = _ADD * rows * columns / 4096 if size > 1 else _ALONE
    return _CALL + _both(read, _megabytes(problem) * _MEMORY, _SEEN) + end


def _microseconds_of_others(problem: Case, gpu: GPU) -> float:
    """About how long it takes without clusters."""
    m, n, k = _sizes(problem)
    config = default(problem, gpu) if splits(problem, gpu) else default_split(problem, gpu)
    kind = "int8" if problem.dtype == "int8" else "fast" if problem["fast"] else "promoted"
    parts = config.get("SPLITS", 1)
    steps = triton.cdiv(triton.cdiv(k, config["BLOCK_K"]), parts) * config["BLOCK_K"] / _STEP
    work = (max(config["BLOCK_M"], 32) * config["BLOCK_N"] / 8192 + 0.5) / 1.5
    busy = steps * work * _OTHERS_STEP[kind]
    adding = _OTHERS_ADD + parts * m * n * 4 / 1e6 * _OTHERS_PARTS if parts > 1 else 0.0
    return _OTHERS_CALL + _both(busy, _megabytes(problem) * _OTHERS_MEMORY, _OTHERS_SEEN) + adding


def _sizes(problem: Case) -> tuple[int, int, int]:
    return problem["m"], problem["n"], problem["k"]


def _megabytes(problem: Case) -> float:
    m, n, k = _sizes(problem)
    return (m * k + k * n + 2 * m * n) / 1e6


def _both(busy: float, moved: float, seen: float) -> float:
    """What takes longer, and what is seen of the other."""
    return max(busy, moved) + seen * min(busy, moved)


def _wasteful(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config is not worth an estimate.

    Of tiles of 128 x 64 two groups of warps promote sums side by side: a program alone takes 10.8 us, by 64 x 128 13.3,
    `split_descriptor` 12.2 (384 x 1536 x 4096, H200).
    """
    rows, columns, size = (config[name] for name in CLUSTERED_SPACE)
    if _LONG not in (rows, columns):
        return "neither side is one of wgmma's 64"
    if size == 1 and rows * columns > _LONG**2 and not (promotes(problem) and rows > columns):
        return "long steps through all of K"
    if size == 1 and problem["k"] < _ALONE_K:
        return "a program alone of so few steps: 6.3 us, `descriptor` 5.4 (192x2560x1024)"
    sides = [(block, problem[side]) for block, side in ((rows, "m"), (columns, "n")) if block != _LONG]
    for block, side in sides or [(_LONG, min(problem["m"], problem["n"]))]:
        if (block < _LONG and block < side) or (block > 16 and block >= 2 * side):
            return "a tile of few of many rows or columns, or twice as large as C"
    return ""


_CHOICE = Estimated(CLUSTERED_SPACE, _microseconds, _wasteful, _NEAR)
