"""The variant `swizzled` of products of fp32: its tiles, what it takes, and matmul's launcher of it."""

import functools
from collections.abc import Callable

import torch
import triton
from atlas.declaration import GPU, Capability, Case, Config, Variant

from kernels.common.products import all_describable

from .spaces import SPACE
from .tiled import empty_product, launch_pointers, tiled_kernel

SWIZZLED_SPACE = {
    "BLOCK_M": (64, 128),
    "BLOCK_N": (64, 128),
    "BLOCK_K": (32,),
    "GROUP_M": (8,),
    "STAGES": (3, 4),
    "num_warps": (2, 4, 8),
}

# (BLOCK_M, BLOCK_N, num_warps): the share of its best rate that a GPU reaches with such tiles, once enough warps are on
# every SM.  Estimates, for the tuner to replace: 4 x 8 elements a thread have half as many multiplications, and three
# quarters of the reads, as 8 x 8.
TILES = {
    (128, 128, 8): 1.0,
    (128, 64, 4): 0.98,
    (64, 128, 4): 0.97,
    (64, 64, 2): 0.96,
    (64, 64, 4): 0.9,
    (128, 64, 8): 0.89,
    (64, 128, 8): 0.88,
}


def swizzled(launch: Callable, row_lengths: Callable[[Case], tuple[int, ...]]) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n]; ``row_lengths(case)`` are those of its operands."""
    return Variant(
        name="swizzled",
        summary="Gluon: fp32 by FMA, from blocks that TMA swizzles, 8 x 8 or 4 x 8 elements a thread",
        launch=launch,
        space=SWIZZLED_SPACE,
        default=_default,
        fits=_fits,
        handles=functools.partial(_handles, row_lengths),
        needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
        follows="tiled",
    )


def launch_swizzled(a, b, tf32=False, *, config):
    """Launch the kernel in Gluon for fp32; operands that no descriptor can describe are read through pointers."""
    from .hopper_fp32 import product

    if a.dtype != torch.float32 or not all_describable(a, b):
        return launch_pointers(tiled_kernel, a, b, tf32, config=dict(zip(SPACE, (64, 64, 32, 8, 4, 3), strict=True)))
    c = empty_product(a, b)
    product(a, b, c, config=config)
    return c


def _handles(row_lengths, problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if problem.dtype != "fp32":
        return "for FMA; tensor cores read other layouts"
    if any(length % 4 for length in row_lengths(problem)):
        return "rows of an operand are not aligned to 16 bytes"
    if min(problem["m"], problem["n"]) < 64:
        return "the smallest tile is taller or wider than C"
    tiles = _tile_count(problem, 64, 64)
    return "" if tiles >= gpu.sms else f"{tiles} tiles leave SMs idle"


def _tile_count(problem: Case, rows: int, columns: int) -> int:
    return triton.cdiv(problem["m"], rows) * triton.cdiv(problem["n"], columns)


def _programs(tile: tuple[int, int, int]) -> int:
    """Programs that an SM's registers hold, in every layout (ptxas of Triton 3.6).

    8 x 8 elements a thread take up to 255: 8 warps.  4 x 8 take 128 to 160 where a tile is 64 x 64: 12 warps or 16;
    and 128 to 184 where it has 8 warps: there may be room for a second program, or not.
    """
    rows, columns, warps = tile
    return (8 if rows * columns == 64 * 32 * warps else 12) // warps


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot launch, or cannot be the best; ``""`` for one worth a trial."""
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    tile = (rows, columns, config["num_warps"])
    if tile not in TILES:
        return "other than 8 x 8 or 4 x 8 elements a thread: registers spill, or more is read from shared memory"
    programs = _programs(tile)
    if programs * config["STAGES"] * (rows + columns) * config["BLOCK_K"] * 4 + 1024 * programs > gpu.shared_bytes:
        return "shared memory holds fewer programs than registers do"
    if rows * columns > 64 * 64 and _tile_count(problem, rows, columns) * 2 < gpu.sms:
        return "tiles leave half of the SMs idle"
    return ""


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    """The tile that ends first by the estimates: one of few warps where an SM has several tiles of it, or of many."""

    def seconds(tile):  # in units of one multiplication-addition on every SM
        rows, columns, warps = tile
        of_one = triton.cdiv(_tile_count(problem, rows, columns), gpu.sms)
        # Fewer than 8 warps wait for what they read: 1024 each way (linear, H200), 86 us with 4 of them, 64 with 8.
        awake = min(1.0, min(of_one, _programs(tile)) * warps / 8) ** 0.5
        return of_one * rows * columns / (TILES[tile] * awake)

    rows, columns, warps = min(TILES, key=seconds)
    return dict(zip(SWIZZLED_SPACE, (rows, columns, 32, 8, 3, warps), strict=True))
