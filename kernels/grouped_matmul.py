"""Grouped matrix multiplication, as in a mixture of experts: each group of rows has a matrix of its own.

Rows a[m, k] are sorted by group; group g has those from offs[g - 1] (0 for the first) to offs[g], and b[g] of
b[groups, k, n]:

    c[i] = a[i] @ b[g]    for offs[g - 1] <= i < offs[g],    c[i] = 0 from the last end on

Groups may be empty and of any length.  Backward is one more product of this kind and one whose sums are ragged:

    da[i] = dc[i] @ b[g]^T,    db[g] = sum of a[i]^T dc[i] over the rows i of g

The ends lie on the device and are never read by the host: programs find the group of a tile by counting the tiles of
the groups before it, so one launch serves any distribution, and a CUDA graph may hold it.  Reads a and those matrices
of b that have rows, writes c; 2 M N K operations.

Variants: `tiled` reads through pointers; `descriptor` lets the copy engine (TMA) move blocks.  A block of a may reach
into the rows of the next group: those are multiplied too and not stored.
"""

import functools
import math

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    GPU,
    Capability,
    Case,
    Config,
    Declaration,
    Pass,
    Peer,
    Variant,
    case,
    choose,
    compiled,
    compiled_gradients,
    eager,
    element_size,
    gpu_of,
    gradients,
    torch_dtype,
)
from atlas.declaration.products import as_interpreted, describable, fp32_precision, precision_of, uses_tensor_cores
from atlas.operators import CustomOperator, Differentiable, launch
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["grouped_mm"]


@triton.jit
def _tiles_of_groups(
    offs_ptr, groups, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr
):  # fmt: skip
    """Tiles of c up to the end of each group, [BLOCK_G]; number ``groups`` are the rows that belong to none."""
    group = tl.arange(0, BLOCK_G)
    ends = tl.load(offs_ptr + group, mask=group < groups, other=0)
    ends = tl.where(group < groups, ends, M)  # no rows, so no tiles, after the rest
    starts = tl.load(offs_ptr + group - 1, mask=(group > 0) & (group <= groups), other=0)
    starts = tl.where(group <= groups, starts, M)
    return tl.cumsum(tl.cdiv(tl.maximum(ends - starts, 0), BLOCK_M) * tl.cdiv(N, BLOCK_N), axis=0)


@triton.jit
def _place(
    position, ends_of_tiles, offs_ptr, groups, M, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """(group, first row, end of the group's rows, first column) of the tile at ``position``.

    Groups come one after the other; within one, tiles go down GROUP_M rows of tiles before the next column.
    """
    before = ends_of_tiles <= position
    group = tl.sum(before.to(tl.int32), axis=0)
    within = position - tl.max(tl.where(before, ends_of_tiles, 0), axis=0)
    start = tl.load(offs_ptr + group - 1, mask=group > 0, other=0)
    end = tl.load(offs_ptr + group, mask=group < groups, other=M)
    tiles_m = tl.cdiv(end - start, BLOCK_M)
    tiles_of_band = GROUP_M * tl.cdiv(N, BLOCK_N)
    first_m = (within // tiles_of_band) * GROUP_M
    rows = tl.minimum(tiles_m - first_m, GROUP_M)
    within = within % tiles_of_band
    return group, start + (first_m + within % rows) * BLOCK_M, end, within // rows * BLOCK_N


@triton.jit
def _store_rows(c_ptr, acc, row, end, n, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Writes the rows of the block at (row, n) that belong to the group; c is contiguous."""
    offs_m = row + tl.arange(0, BLOCK_M)
    offs_n = n + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(offs_m[:, None] < end) & (offs_n[None, :] < N))


@triton.jit
def _rows_kernel(
    a_ptr, b_ptr, offs_ptr, c_ptr, groups, M, N, K, stride_am, stride_ak, stride_bg, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    BLOCK_G: tl.constexpr, PROGRAMS: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Ragged rows: a program takes every PROGRAMS-th tile of all groups."""
    ends_of_tiles = _tiles_of_groups(offs_ptr, groups, M, N, BLOCK_M, BLOCK_N, BLOCK_G)
    for position in range(tl.program_id(0), tl.max(ends_of_tiles, axis=0), PROGRAMS):
        group, row, end, n = _place(position, ends_of_tiles, offs_ptr, groups, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        # Rows past the group's end and columns past N are valid ones again: the loop needs no mask for them.
        offs_m = tl.minimum(row + tl.arange(0, BLOCK_M), end - 1).to(tl.int64)
        offs_n = ((n + tl.arange(0, BLOCK_N)) % N).to(tl.int64)
        offs_k = tl.arange(0, BLOCK_K)
        a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k.to(tl.int64)[None, :] * stride_ak
        b_ptrs = b_ptr + offs_k.to(tl.int64)[:, None] * stride_bk + offs_n[None, :] * stride_bn
        b_ptrs += group.to(tl.int64) * stride_bg
        block_k = tl.full((), BLOCK_K, tl.int64)  # a stride of 16 M elements times BLOCK_K = 128 passes 2^31
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, tl.where(group < groups, K, 0), BLOCK_K):  # rows of no group are 0
            if EVEN_K:
                a = tl.load(a_ptrs)
                b = tl.load(b_ptrs)
            else:  # 0 past K: adds nothing to the sum
                a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
                b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0.0)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
            a_ptrs += block_k * stride_ak
            b_ptrs += block_k * stride_bk
        _store_rows(c_ptr, acc, row, end, n, N, BLOCK_M, BLOCK_N)


@triton.jit
def _rows_descriptor_kernel(
    a_desc, b_desc, offs_ptr, c_ptr, groups, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    BLOCK_G: tl.constexpr, PROGRAMS: tl.constexpr, B_BY_COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same by the copy engine; the loops are one, so blocks of the next tile load while one is stored.

    Rows of no group are one step over what lies outside of a and b, which is read as 0.
    """
    ends_of_tiles = _tiles_of_groups(offs_ptr, groups, M, N, BLOCK_M, BLOCK_N, BLOCK_G)
    finished = tl.program_id(0) - PROGRAMS  # counted apart: the store then hangs on nothing that is prefetched
    for position in tl.range(tl.program_id(0), tl.max(ends_of_tiles, axis=0), PROGRAMS, flatten=True):
        group, row, end, n = _place(position, ends_of_tiles, offs_ptr, groups, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        row = tl.where(group < groups, row, M)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, tl.where(group < groups, K, 1), BLOCK_K):
            a = a_desc.load([row, k])
            if B_BY_COLUMNS:
                b = b_desc.load([group, n, k]).reshape(BLOCK_N, BLOCK_K).T
            else:
                b = b_desc.load([group, k, n]).reshape(BLOCK_K, BLOCK_N)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        finished += PROGRAMS
        group, row, end, n = _place(finished, ends_of_tiles, offs_ptr, groups, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        _store_rows(c_ptr, acc, row, end, n, N, BLOCK_M, BLOCK_N)


@triton.jit
def _sums_tile(M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """(group, first row, first column) of this program's tile of c[groups, m, n], in the order of ``_place``."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles = tiles_m * tl.cdiv(N, BLOCK_N)
    within = tl.program_id(0) % tiles
    tiles_of_band = GROUP_M * tl.cdiv(N, BLOCK_N)
    first_m = (within // tiles_of_band) * GROUP_M
    rows = min(tiles_m - first_m, GROUP_M)
    within = within % tiles_of_band
    return tl.program_id(0) // tiles, (first_m + within % rows) * BLOCK_M, within // rows * BLOCK_N


@triton.jit
def _store_sums(c_ptr, acc, group, m, n, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Writes the part of the tile at (m, n) that is inside c[group]; c is contiguous."""
    offs_m = m + tl.arange(0, BLOCK_M)
    offs_n = n + tl.arange(0, BLOCK_N)
    rows = group.to(tl.int64) * M + offs_m
    inside = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + offs_n[None, :], acc.to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _sums_kernel(
    a_ptr, b_ptr, offs_ptr, c_ptr, M, N, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Ragged sums: one program owns one tile of c[group] = a[:, rows of group] @ b[rows of group]."""
    group, m, n = _sums_tile(M, N, BLOCK_M, BLOCK_N, GROUP_M)
    start = tl.load(offs_ptr + group - 1, mask=group > 0, other=0)
    end = tl.load(offs_ptr + group)
    offs_m = ((m + tl.arange(0, BLOCK_M)) % M).to(tl.int64)
    offs_n = ((n + tl.arange(0, BLOCK_N)) % N).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + (start + offs_k).to(tl.int64)[None, :] * stride_ak
    b_ptrs = b_ptr + (start + offs_k).to(tl.int64)[:, None] * stride_bk + offs_n[None, :] * stride_bn
    block_k = tl.full((), BLOCK_K, tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(start, end, BLOCK_K):  # 0 past the end: adds nothing to the sum
        a = tl.load(a_ptrs, mask=offs_k[None, :] < end - k, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < end - k, other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        a_ptrs += block_k * stride_ak
        b_ptrs += block_k * stride_bk
    _store_sums(c_ptr, acc, group, m, n, M, N, BLOCK_M, BLOCK_N)


@triton.jit
def _sums_descriptor_kernel(
    a_desc, b_desc, offs_ptr, c_desc, M, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The same by the copy engine; ``a_desc`` is that of a^T, whose rows the groups are of.

    Whole blocks need no mask.  The last, if it is not whole, holds rows of the next group, which become 0 in both
    factors: the other's might be infinite.
    """
    group, m, n = _sums_tile(M, N, BLOCK_M, BLOCK_N, GROUP_M)
    start = tl.load(offs_ptr + group - 1, mask=group > 0, other=0)
    end = tl.load(offs_ptr + group)
    whole = start + tl.maximum(end - start, 0) // BLOCK_K * BLOCK_K
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(start, whole, BLOCK_K):
        acc = tl.dot(a_desc.load([k, m]).T, b_desc.load([k, n]), acc, input_precision=PRECISION)
    if whole < end:
        inside = (tl.arange(0, BLOCK_K) < end - whole)[:, None]
        a, b = a_desc.load([whole, m]), b_desc.load([whole, n])
        a, b = tl.where(inside, a, 0.0).to(a.dtype), tl.where(inside, b, 0.0).to(b.dtype)
        acc = tl.dot(a.T, b, acc, input_precision=PRECISION)
    c_desc.store([group, m, n], acc.to(c_desc.dtype).reshape(1, BLOCK_M, BLOCK_N))


def _launch_rows(a, b, offs, out_dtype=None, *, config, by_descriptor=False):
    """c [m, n] for a [m, k], b [groups, k, n]."""
    (m, k), (groups, _, n) = a.shape, b.shape
    c = torch.empty((m, n), dtype=out_dtype or a.dtype, device=a.device)
    b_by_columns = b.stride(2) != 1
    b_rows = b.transpose(1, 2) if b_by_columns else b
    by_descriptor = by_descriptor and describable(a) and describable(b_rows)
    a, b, b_rows = as_interpreted(a), as_interpreted(b), as_interpreted(b_rows)
    rows, columns, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    most = (triton.cdiv(m, rows) + groups) * triton.cdiv(n, columns)  # each group's last tile may be a part of one
    resident = 1 if rows * columns > 128 * 128 or by_descriptor else 2
    meta = {
        "BLOCK_G": triton.next_power_of_2(groups + 1), "PROGRAMS": min(most, resident * gpu_of(a.device).sms),
        "PRECISION": fp32_precision(), **config,
    }  # fmt: skip
    if by_descriptor:
        block_of_b = [1, columns, block_k] if b_by_columns else [1, block_k, columns]
        launch(
            _rows_descriptor_kernel, (meta["PROGRAMS"],),
            TensorDescriptor.from_tensor(a, [rows, block_k]), TensorDescriptor.from_tensor(b_rows, block_of_b),
            offs, c, groups, m, n, k, B_BY_COLUMNS=b_by_columns, **meta,
        )  # fmt: skip
    else:
        launch(
            _rows_kernel, (meta["PROGRAMS"],), a, b, offs, c, groups, m, n, k, *a.stride(), *b.stride(),
            EVEN_K=k % block_k == 0, **meta,
        )  # fmt: skip
    return c


def _launch_sums(a, b, offs, out_dtype=None, *, config, by_descriptor=False):
    """c [groups, m, n] for a [m, k], b [k, n], whose k is what the groups share."""
    (m, _), n, groups = a.shape, b.shape[1], offs.shape[0]
    c = torch.empty((groups, m, n), dtype=out_dtype or a.dtype, device=a.device)
    by_descriptor = by_descriptor and c.dtype == a.dtype and all(map(describable, (a.t(), b, c)))
    if by_descriptor:
        config = _for_short_groups(config, a.shape[1] // max(groups, 1))
    rows, columns, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    grid = (groups * triton.cdiv(m, rows) * triton.cdiv(n, columns),)
    a, b = as_interpreted(a), as_interpreted(b)
    if by_descriptor:
        launch(
            _sums_descriptor_kernel, grid,
            TensorDescriptor.from_tensor(a.t(), [block_k, rows]), TensorDescriptor.from_tensor(b, [block_k, columns]),
            offs, TensorDescriptor.from_tensor(c, [1, rows, columns]), m, n, PRECISION=fp32_precision(), **config,
        )  # fmt: skip
    else:
        launch(
            _sums_kernel, grid, a, b, offs, c, m, n, *a.stride(), *b.stride(), PRECISION=fp32_precision(), **config
        )  # fmt: skip
    return c


def _for_short_groups(config, rows):
    """The config, or one of smaller tiles where groups have so few rows that writing their sums is the cost.

    Several programs share an SM then, and one writes while another reads: 1.40 times as fast as 128 x 256 on an H200 at
    128 rows, 1.15 times at 384.
    """
    for most, tile in ((192, (64, 128, 4, 2)), (640, (128, 128, 4, 3))):
        if rows <= most and config["BLOCK_M"] * config["BLOCK_N"] > tile[0] * tile[1]:
            return {**config, **dict(zip(("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"), tile, strict=True))}
    return config


def _launch_backward(a, b, offs, dc, *, config, by_descriptor=False):
    """(da, db): a product with ragged rows and one with ragged sums, in tiles of one size."""
    da = _launch_rows(dc, b.transpose(1, 2), offs, a.dtype, config=config, by_descriptor=by_descriptor)
    return da, _launch_sums(a.t(), dc, offs, b.dtype, config=config, by_descriptor=by_descriptor)


def _case_of(a, tokens, groups, n, k):
    dtype = "tf32" if a.dtype == torch.float32 and fp32_precision() == "tf32" else _NAMES[a.dtype]
    return case(dtype, spread="even", groups=groups, m=tokens, n=n, k=k)


def _run_rows(a, b, offs, out):
    (m, k), (groups, _, n) = a.shape, b.shape
    variant, config = choose(DECLARATION, "forward", _case_of(a, m, groups, n, k), a.device)
    return variant.launch(a, b, offs, torch_dtype(out), config=config)


def _run_sums(a, b, offs, out):
    (m, tokens), n = a.shape, b.shape[1]
    variant, config = choose(DECLARATION, "backward", _case_of(a, tokens, offs.shape[0], n, m), a.device)
    by_descriptor = variant.name == "descriptor"
    return _launch_sums(a, b, offs, torch_dtype(out), config=config, by_descriptor=by_descriptor)


def _fake_rows(a, b, offs, out):
    return a.new_empty((a.shape[0], b.shape[2]), dtype=torch_dtype(out))


def _fake_sums(a, b, offs, out):
    return a.new_empty((offs.shape[0], a.shape[0], b.shape[1]), dtype=torch_dtype(out))


def _setup(ctx, inputs, output):
    a, b, offs, _ = inputs
    ctx.save_for_backward(a, b, offs)


def _pull_rows(ctx, dc):
    """Both are operators with gradients of their own, so second derivatives need nothing else."""
    a, b, offs = ctx.saved_tensors
    name, dc = _NAMES[a.dtype], dc.to(a.dtype)
    da = _rows(dc, b.transpose(1, 2), offs, name) if ctx.needs_input_grad[0] else None
    db = _sums(a.t(), dc, offs, name) if ctx.needs_input_grad[1] else None
    return da, db, None, None


def _pull_sums(ctx, dc):
    a, b, offs = ctx.saved_tensors
    name, dc = _NAMES[a.dtype], dc.to(a.dtype)
    da = _rows(b, dc.transpose(1, 2), offs, name).t() if ctx.needs_input_grad[0] else None
    db = _rows(a.t(), dc, offs, name) if ctx.needs_input_grad[1] else None
    return da, db, None, None


_SCHEMA = "(Tensor a, Tensor b, Tensor offs, str out) -> Tensor"
_rows = Differentiable(
    CustomOperator("grouped_rows", _SCHEMA, run=_run_rows, fake=_fake_rows, state=precision_of),
    _setup,
    _pull_rows,
)
_sums = Differentiable(
    CustomOperator("grouped_sums", _SCHEMA, run=_run_sums, fake=_fake_sums, state=precision_of),
    _setup,
    _pull_sums,
)


def grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    *,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.grouped_mm`` for a 2D ``mat_a``, in fp32, fp16 or bf16 and any strides.

    With a 3D ``mat_b`` [groups, k, n], rows of ``mat_a`` [m, k] from ``offs[g - 1]`` to ``offs[g]`` are multiplied with
    ``mat_b[g]``; the result is [m, n], 0 in rows from ``offs[-1]`` on (which torch leaves as they are).  With a 2D
    ``mat_b`` [k, n] the groups are of the k columns of ``mat_a`` [m, k], and the result is [groups, m, n].  ``offs`` is
    int32 [groups], on the tensors' device, ascending, and at most the length that it divides; its values are not
    checked, since that would wait for the device.

    Differentiable, any number of times.  The result has ``out_dtype``, else that of the matrices.  Raises
    NotImplementedError for a bias and a 3D ``mat_a``, TypeError for dtypes, ValueError for shapes and devices.
    """
    if bias is not None:
        raise NotImplementedError("grouped_mm has no bias, as torch's kernels have none: add it to the result")
    if mat_a.dtype not in _NAMES or mat_b.dtype != mat_a.dtype:
        raise TypeError(f"grouped_mm takes two tensors of one dtype out of {', '.join(_DTYPES)}: "
                        f"{mat_a.dtype}, {mat_b.dtype}")  # fmt: skip
    out = _NAMES.get(out_dtype or mat_a.dtype)
    if out is None:
        raise TypeError(f"grouped_mm takes an out_dtype out of {', '.join(_DTYPES)}: {out_dtype}")
    if mat_a.dim() != 2 or mat_b.dim() not in (2, 3):
        raise NotImplementedError(
            f"grouped_mm takes a 2D mat_a, and a mat_b of two or three dimensions, not {mat_a.dim()}D and "
            f"{mat_b.dim()}D: use torch.bmm for groups of one size"
        )
    if mat_a.shape[1] != mat_b.shape[-2]:
        raise ValueError(f"grouped_mm takes a mat_b whose rows are as many as mat_a has columns: "
                         f"{tuple(mat_a.shape)} times {tuple(mat_b.shape)}")  # fmt: skip
    if offs is None or offs.dtype != torch.int32 or offs.dim() != 1:
        given = "None" if offs is None else f"{offs.dtype} of shape {tuple(offs.shape)}"
        raise ValueError(f"grouped_mm takes offs as int32 of shape [groups]: {given}")
    if mat_b.dim() == 3 and offs.shape[0] != mat_b.shape[0]:
        raise ValueError(f"grouped_mm takes as many ends as matrices: {offs.shape[0]}, {mat_b.shape[0]}")
    if not mat_a.device == mat_b.device == offs.device:
        raise ValueError(f"grouped_mm takes tensors of one device: {mat_a.device}, {mat_b.device}, {offs.device}")
    if max(*mat_a.shape, *mat_b.shape) > _LARGEST or offs.shape[0] >= _MOST_GROUPS:
        raise ValueError(f"grouped_mm takes sizes up to {_LARGEST} and fewer than {_MOST_GROUPS} groups: "
                         f"{tuple(mat_a.shape)}, {tuple(mat_b.shape)}, {offs.shape[0]} groups")  # fmt: skip
    if not (mat_a.numel() and mat_b.numel()):  # nothing to launch for
        shape = (mat_a.shape[0], mat_b.shape[-1])
        return mat_a.new_zeros(shape if mat_b.dim() == 3 else (offs.shape[0], *shape), dtype=torch_dtype(out))
    return (_rows if mat_b.dim() == 3 else _sums)(mat_a, mat_b, offs.contiguous(), out)


_DTYPES = ("fp32", "fp16", "bf16")
_NAMES = {torch_dtype(name): name for name in _DTYPES}
_LARGEST = 2**31 - 1025
"""Row, column and k offsets are 32-bit in the kernels and may pass the size by one tile."""
_MOST_GROUPS = 1024
"""A program holds the tiles of all groups in registers."""


def _reference(a, b, offs):
    """A product for each group, as one writes it without such a kernel: the ends are fetched from the device."""
    c = a.new_zeros((a.shape[0], b.shape[2]))
    start = 0
    for group, end in enumerate(offs.tolist()):
        c[start:end] = a[start:end] @ b[group]
        start = end
    return c


def _backward_reference(a, b, offs, dc):
    da, db = torch.zeros_like(a), torch.zeros_like(b)
    start = 0
    for group, end in enumerate(offs.tolist()):
        da[start:end] = dc[start:end] @ b[group].t()
        db[group] = a[start:end].t() @ dc[start:end]
        start = end
    return da, db


def _torch_grouped(a, b, offs):
    return torch._grouped_mm(a, b, offs=offs)


def _only_bf16(peer):
    """A peer that is torch's kernel, which takes bf16 and rows of whole 16 bytes."""

    def prepare(**inputs):
        if inputs["a"].dtype != torch.bfloat16 or any(size % 8 for size in inputs["b"].shape[1:]):
            raise NotImplementedError("torch._grouped_mm takes bf16, and sizes that 8 divides")
        return peer.prepare(**inputs)

    return Peer(prepare, compiles=peer.compiles)


def _inputs(problem: Case, device, generator):
    groups, m, n, k, dtype = (*(problem[name] for name in ("groups", "m", "n", "k")), torch_dtype(problem.dtype))

    def draw(*shape):
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    ends = torch.tensor(_ends(problem["spread"], groups, m), dtype=torch.int32).to(device)
    return {"a": draw(m, k), "b": draw(groups, k, n) * (1 / math.sqrt(k)), "offs": ends}


def _ends(spread, groups, m):
    """Ends of groups: of one size; each half as long as the one before; or ragged, with empty ones and a rest."""
    if spread == "even":
        return [m * (group + 1) // groups for group in range(groups)]
    if spread == "skewed":
        return [m - (m >> (group + 1)) if group + 1 < groups else m for group in range(groups)]
    odd = [0 if group % 3 == 1 else 1 + (7 * group) % 5 for group in range(groups)]
    used = m - m // 8
    return [used * sum(odd[: group + 1]) // max(sum(odd), 1) for group in range(groups)]


def _backward_inputs(problem: Case, device, generator):
    forward = _inputs(problem, device, generator)
    shape = (problem["m"], problem["n"])
    dc = torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)
    return {**forward, "dc": dc}


def _bytes(problem: Case) -> dict[str, float]:
    m, n, k = problem["m"], problem["n"], problem["k"]
    size = element_size(problem.dtype)
    return {"a": m * k * size, "b": problem["groups"] * k * n * size, "c": m * n * size}


def _backward_bytes(problem: Case) -> dict[str, float]:
    forward = _bytes(problem)
    return {"a, da": 2 * forward["a"], "b, db": 2 * forward["b"], "dc": forward["c"]}


def _flops(problem: Case) -> dict[str, float]:
    return {"a @ b": 2 * problem["m"] * problem["n"] * problem["k"]}


def _cases(gpu: GPU) -> list[Case]:
    shapes = (
        ("even", 8, 8192, 14336, 4096),  # Mixtral's eight experts of 4096 x 14336, 4096 tokens of two each
        ("skewed", 8, 8192, 14336, 4096),
        ("even", 8, 8192, 4096, 14336),  # and down
        ("even", 8, 1024, 14336, 4096),  # few tokens: the weights are the cost
        ("even", 64, 24576, 1408, 2048),  # DeepSeek's 64 experts of 2048 x 1408, 4096 tokens of six each
        ("skewed", 64, 24576, 1408, 2048),
        ("even", 64, 24576, 2048, 1408),  # and down
        ("even", 64, 3072, 1408, 2048),
    )
    cases = [case("bf16", spread=spread, groups=groups, m=m, n=n, k=k) for spread, groups, m, n, k in shapes]
    cases.append(case("fp16", "for GPUs without bf16", spread="even", groups=64, m=3072, n=1408, k=2048))
    return [c for c in cases if sum(_backward_bytes(c).values()) <= gpu.memory_bytes // 8]


_EDGE_CASES = tuple(
    case(dtype, reason, spread=spread, groups=groups, m=m, n=n, k=k)
    for dtype in _DTYPES
    for spread, groups, (m, n, k), reason in (
        ("even", 1, (1, 1, 1), "one element of each, one group"),
        ("even", 2, (128, 64, 32), "whole tiles only"),
        ("ragged", 7, (80, 72, 32), "empty groups, groups that end within a tile, and rows of no group"),
        ("ragged", 4, (70, 65, 33), "tails everywhere, strides that allow no wide loads"),
        ("skewed", 5, (41, 48, 24), "a long group and short ones; a tail in k"),
        ("even", 16, (9, 32, 16), "more groups than rows"),
    )
)

_HUGE_CASES = (
    case("bf16", "offsets into a beyond 2^31", spread="skewed", groups=3, m=2**18 + 1, n=16, k=8192),
    case("bf16", "offsets into c beyond 2^31", spread="skewed", groups=3, m=2**18 + 1, n=8192, k=16),
)


def _narrow(problem: Case) -> bool:
    """Whether operands may be read element by element, through registers: 16 must divide sizes for wide loads."""
    return bool(problem["n"] % 16 or problem["k"] % 16)


# (BLOCK_M, BLOCK_N, num_warps) by the rows that a group has on average: the larger the tile the fewer reads from L2,
# but rows past a group's end are multiplied for nothing.
_TENSOR_CORE_TILES = (
    (128, 256, 8), (128, 128, 8), (128, 128, 4), (64, 256, 4), (64, 128, 4), (64, 64, 4), (32, 128, 4), (16, 128, 4),
    (16, 64, 4), (16, 32, 4),
)  # fmt: skip
_FMA_TILES = ((64, 64, 8), (64, 64, 4), (32, 64, 8), (32, 64, 4), (32, 32, 4), (16, 32, 4))


def _tiles(problem: Case, gpu: GPU) -> tuple[tuple[int, int, int], ...]:
    """The tiles worth a trial, by what they compute with and how long groups are."""
    rows = problem["m"] / problem["groups"]
    if uses_tensor_cores(problem, gpu) and not _narrow(problem):
        high, wide = max(16, 2 * rows), max(32, 2 * problem["n"])
        if Capability.WGMMA not in gpu.capabilities:  # 128 x 256 in 8 warps spills on sm_80 (Triton 3.6)
            wide = min(wide, 128)
        tiles = [tile for tile in _TENSOR_CORE_TILES if tile[0] <= high and tile[1] <= wide]
        return tuple(tiles[:4])
    if problem.dtype != "fp32":  # held a second time, as fp32: more in a warp spills on sm_75 (Triton 3.7.1)
        return tuple(tile for tile in _FMA_TILES if tile[0] * tile[1] // tile[2] <= 256)
    return _FMA_TILES


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot launch, or cannot be the best for this problem; ``""`` for one worth a trial."""
    if (config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]) not in _tiles(problem, gpu):
        return "registers spill, too little work a warp, or tiles much longer than groups"
    tensor_cores = uses_tensor_cores(problem, gpu)
    row_bytes = (64 if _narrow(problem) else 128) if tensor_cores else 16 * element_size(problem.dtype)
    if config["BLOCK_K"] * element_size(problem.dtype) != row_bytes:
        return "rows of 128 bytes fill the widest swizzle of shared memory; what passes through registers is shorter"
    if (config["num_stages"] > 2) != (tensor_cores and not _narrow(problem)):
        return "as many stages as latency takes: none where FMA or single elements are the bound"
    shared = _stage_bytes(config, problem) * (config["num_stages"] if _arch(gpu) >= 80 else 1)
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    return ""


def _arch(gpu: GPU) -> int:
    """Compute capability; 80 for what is not CUDA."""
    return int(gpu.arch) if gpu.backend == "cuda" else 80


def _stage_bytes(config: Config, problem: Case) -> int:
    return (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"] * element_size(problem.dtype)


_SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64),
    "GROUP_M": (8,),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
}


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    """The first tile, with the most stages, that fits."""
    configs = [
        dict(zip(_SPACE, (rows, columns, block_k, 8, warps, stages), strict=True))
        for rows, columns, warps in _tiles(problem, gpu)
        for stages in (4, 3, 2)
        for block_k in (64, 32, 16)
    ]
    return next((config for config in configs if not _fits(config, problem, gpu)), configs[-1])


def _describes(problem: Case, gpu: GPU) -> str:
    """Why `descriptor` does not take a case."""
    if problem.dtype in ("fp32", "tf32"):
        return "fp32 in IEEE precision is bound by FMA, which no copy engine speeds up"
    if any(problem[size] * element_size(problem.dtype) % 16 for size in "nk"):
        return "rows of a or b are not aligned to 16 bytes"
    return ""


def _variants(launch_pass):
    """The two variants of a pass."""
    return (
        Variant(
            name="descriptor",
            summary="blocks moved by the copy engine (TMA) through descriptors",
            follows="tiled",
            launch=functools.partial(launch_pass, by_descriptor=True),
            space=_SPACE,
            default=_default,
            fits=_fits,
            handles=_describes,
            needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
        ),
        Variant(
            name="tiled",
            summary="pipelined tiles read through pointers",
            launch=launch_pass,
            space=_SPACE,
            default=_default,
            fits=_fits,
        ),
    )


DECLARATION = Declaration(
    name="grouped_matmul",
    family="matmul",
    summary="c = a b[g], rows in groups",
    function=grouped_mm,
    call=lambda function, inputs: function(inputs["a"], inputs["b"], offs=inputs["offs"]),
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("a", "b"),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("c",),
        variants=_variants(_launch_rows),
        peers={
            "torch": eager(_reference),
            "torch._grouped_mm": _only_bf16(eager(_torch_grouped)),
            "torch.compile": _only_bf16(compiled(_torch_grouped, mode="max-autotune-no-cudagraphs")),
        },
        bytes=_bytes,
        flops=_flops,
        reduction=lambda c: c["k"],
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_backward_reference,
        outputs=("da", "db"),
        variants=_variants(_launch_backward),
        peers={
            "torch": eager(_backward_reference),
            "torch._grouped_mm": _only_bf16(gradients(_torch_grouped, ("a", "b"), cotangent="dc")),
            "torch.compile": _only_bf16(compiled_gradients(_torch_grouped, ("a", "b"), cotangent="dc")),
        },
        bytes=_backward_bytes,
        flops=lambda c: {"dc @ b^T": _flops(c)["a @ b"], "a^T @ dc": _flops(c)["a @ b"]},
        reduction=lambda c: max(c["m"], c["n"]),
    ),
)
