"""Launching `direct` and its gradient: how parts are added, what shared memory that takes, and descriptors."""

import typing

import torch
import triton
from atlas.operators import Clustered
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.common import clusters
from kernels.common.early import launch_early
from kernels.common.hopper import described

from .direct_parts import ROWS, sum_tiles_kernel
from .direct_space import tiles_to_cut

_WRITTEN = 128
"""The most rows of y that are written at once: of 256 in two parts, which leaves a stage more to the ring."""


class Plan(typing.NamedTuple):
    """A kernel with its grid, where it writes (a descriptor, a tensor), and bytes of shared memory beside the ring."""

    kernel: object
    grid: int
    desc: TensorDescriptor | None
    parts: torch.Tensor
    cut: int
    cluster: int
    static: int
    others: int


def tiles_of(y, shape):
    """Tiles of y [m, n]; ``shape``: rows, groups of 64 columns, groups that take turns."""
    return triton.cdiv(y.shape[0], shape[0]) * triton.cdiv(y.shape[1], shape[1] * ROWS.value)


def planned(kernel, y, shape, splits, programs, clustered):
    """A plan for y in parts of ``tiles_of`` it, ``clustered`` or in memory."""
    rows, groups, _ = shape
    tiles = tiles_of(y, shape)
    cut = tiles_to_cut(tiles, splits, programs)
    if clustered:
        static = clusters.static_bytes(groups * clusters.buffer_bytes(ROWS.value, rows, 4, splits))
        return Plan(Clustered(kernel, splits), tiles, None, y, cut, splits, static, static)
    written = min(rows, _WRITTEN)
    parts = y
    if cut:
        parts = torch.empty((splits, cut, groups * ROWS.value, rows), dtype=torch.float32, device=y.device)
    desc, grid = described(y, written, ROWS.value), min(programs, tiles * splits)
    return Plan(kernel, grid, desc, parts, cut, 1, 0, groups * ROWS.value * 2 * written)


def add_parts(plan, y, shape, splits, band, *, turned):
    """Add what the plan's kernel left in memory, if it did."""
    rows, groups, _ = shape
    if plan.cut and plan.cluster == 1:
        launch_early(
            sum_tiles_kernel, (plan.cut * groups * (rows // 32),), y.device, plan.parts, y, *y.shape,
            tiles_of(y, shape) - plan.cut, plan.cut, PARTS=splits, BLOCK_M=rows, BLOCK_N=groups * ROWS.value,
            GROUP_M=band, ROWS_AT_ONCE=32, TURNED=turned, num_warps=4,
        )  # fmt: skip


def described_block(matrix, block, dtype):
    return TensorDescriptor.from_tensor(matrix, block, gl.NVMMASharedLayout.get_default_for(block, dtype))


def stages_of(stage, rest):
    """Stages of so many bytes that shared memory holds beside the ``rest``."""
    return max(2, min(12, (224 * 1024 - rest - 2048) // stage))
