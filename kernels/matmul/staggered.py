"""The variant `staggered` of 16-bit products: few rows times a matrix of rows along K off 16 bytes, as it lies.

Such rows begin anywhere within 16 bytes, so the copy engine does not read them, nor do asynchronous copies those of odd
length; a copy would read and write the matrix once more than the product does.  But rows whose numbers are equal modulo
8 (4 or 2, where their length is even) begin at one place in 16 bytes: a program multiplies rows of one such class, by
whole 16 bytes, with A shifted by as much.  The 16 bytes in which rows begin and end hold elements of their neighbours
too, and are read one element at a time.
"""

import functools
import math
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Capability, Case, Config, Variant, element_size
from atlas.declaration.products import as_interpreted
from atlas.operators import launch
from triton.language.extra.cuda import gdc_wait

from kernels.common.counting import cdiv
from kernels.common.early import launch_early
from kernels.common.estimated import Estimated
from kernels.common.parts import count_of_parts, empty_parts, part_of_k, sum_parts
from kernels.common.products import layout_of

from .split_described import launch_split_descriptor
from .split_spaces import SPLIT_DESCRIPTOR_SPACE
from .tiled import empty_product

STAGGERED_SPACE = {
    "BLOCK_N": (32, 64),
    "BLOCK_K": (128,),
    "SPLITS": (1, 2, 3, 4, 6, 8, 12, 16),
    "COPIES": (0, 1),
    "num_warps": (4,),
}
"""BLOCK_N: rows of one class that a program reads.  COPIES: whether A is copied first, shifted for each class."""

_WIDTH = 8
"""Elements of 16 bytes."""
_STAGES = 4
_LEAST_BYTES = {16: 2**19, 32: 2**22, 64: 2**24}
"""Of the matrix, by the rows of a tile: a smaller one is copied in little more than the time of a launch."""
_LEAST_OF_EVEN = 2**23
"""The same of even rows, which `odd_rows` reads, too: by 4 or 8 bytes.

8 x 14336 x 5124 NT takes 59.2 us so and 83.8 by those, 64 rows 74.5 and 124; of 8 to 21 MB both take as long (H200).
"""
_LEAST_K = 96
"""Elements of a row: most of a shorter one are in the 16 bytes in which it begins or ends."""
_MOST_ROWS = max(_LEAST_BYTES)
_COPY = 1024
"""Elements of a row that a program copies."""

_AT_ONCE = 6
"""Programs that an SM has registers for, and more than it needs."""
_BYTES, _ALONE = 2.9e4, 3.3e4
"""Bytes that an SM moves in a microsecond beside all others, and one program (H200)."""
_PROGRAM, _HIDDEN = 4.7, 0.5
"""Microseconds until a program has its first bytes and after its last; the part of the shorter of an SM's time and of a
program's that the other does not hide."""
_COPIES, _BLOCK = 2.1, 0.3
"""Microseconds for the kernel that shifts A; without it, for each block of A, which is read by registers."""
_SUM, _PASS = 0.3, 1.6e3
"""Microseconds for the kernel that adds parts up, and bytes an SM adds up in one."""
_OF_A = 0.25
"""What a byte of A takes, which is in L2, for one of the matrix."""
_NEAR = 1.15
"""How much longer than the best a config may take by the estimate and be worth a trial."""


@triton.jit
def _shift_kernel(
    a_ptr, out_ptr, M, K, stride_am, stride_ak, stride_b, LENGTH,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[class, row, p] = A[row, p - shift of the class]: program (row, block, class).

    It is 0 where the class' rows of B have no whole 16 bytes of theirs: an infinity times 0 would be NaN.
    """
    of_class, row = tl.program_id(2), tl.program_id(0)
    shift = (of_class.to(tl.int64) * stride_b % WIDTH).to(tl.int32)
    p = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k = p - shift
    inside = (p >= WIDTH) & (p < (K + shift - 1) // WIDTH * WIDTH) & (row < M)
    a = tl.load(a_ptr + row.to(tl.int64) * stride_am + k.to(tl.int64) * stride_ak, mask=inside, other=0.0)
    tl.store(out_ptr + (of_class * ROWS + row).to(tl.int64) * LENGTH + p, a)


@triton.jit
def _block_of_a(a_ptr, M, begin, end, first, stride_am, stride_ak, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    """Columns of A from ``first`` on, 0 outside of ``begin`` to ``end``: an infinity times 0 would be NaN."""
    offs_m, k = tl.arange(0, BLOCK_M), first + tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m.to(tl.int64)[:, None] * stride_am + k.to(tl.int64)[None, :] * stride_ak
    return tl.load(a_ptrs, mask=(offs_m[:, None] < M) & ((k >= begin) & (k < end))[None, :], other=0.0)


@triton.jit
def _staggered_kernel(
    a_ptr, copies_ptr, b_ptr, out_ptr, M, N, K, K_PART, LENGTH, stride_am, stride_ak, stride_b, stride_om, stride_on,
    stride_op, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CLASSES: tl.constexpr,
    WIDTH: tl.constexpr, COPIES: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (tile, part) sums BLOCK_N columns of C, CLASSES apart, over K_PART positions in rows of B.

    WIDTH: the elements of 16 bytes, at which B begins; CLASSES * stride_b is a multiple of it.  Position p of a row
    counts from the 16 bytes in which it begins, so that it is of k = p - shift.  The first and the last vector of a
    row are of the first part.
    """
    of_class, tile = tl.program_id(0) % CLASSES, tl.program_id(0) // CLASSES
    first_row = of_class.to(tl.int64) * stride_b
    shift = (first_row % WIDTH).to(tl.int32)
    t = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    n = of_class + t * CLASSES
    apart = stride_b.to(tl.int64) * CLASSES // WIDTH * WIDTH
    rows = b_ptr + first_row // WIDTH * WIDTH + t.to(tl.int64)[:, None] * apart
    last = (K + shift - 1) // WIDTH * WIDTH
    begin = tl.program_id(1) * K_PART
    end = tl.minimum(begin + K_PART, last)
    e = tl.arange(0, 2 * WIDTH)
    p = tl.where(e < WIDTH, e, last + e - WIDTH)
    inside = (p >= shift) & (p < K + shift) & ((e < WIDTH) | (last > 0)) & (begin == 0)
    b_edges = tl.load(rows + p[None, :], mask=inside[None, :] & (n[:, None] < N), other=0.0)
    if EARLY:
        gdc_wait()
    offs_m, offs_k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    of_a = offs_m[:, None] < M
    a_ptrs = a_ptr + offs_m.to(tl.int64)[:, None] * stride_am + (p - shift).to(tl.int64)[None, :] * stride_ak
    a_edges = tl.load(a_ptrs, mask=of_a & inside[None, :], other=0.0)
    copies = copies_ptr + (of_class * BLOCK_M + offs_m).to(tl.int64)[:, None] * LENGTH // WIDTH * WIDTH
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if not COPIES:
        low, high = WIDTH - shift, last - shift
        a = _block_of_a(a_ptr, M, low, high, begin - shift, stride_am, stride_ak, BLOCK_M, BLOCK_K)
    for j in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        whole = (j + offs_k >= WIDTH) & (j + offs_k < last)
        b = tl.load(rows + (j + offs_k)[None, :], mask=whole[None, :] & (n[:, None] < N), other=0.0)
        if COPIES:
            acc = tl.dot(tl.load(copies + (j + offs_k)[None, :]), b.T, acc)
        else:
            after = _block_of_a(a_ptr, M, low, high, j + BLOCK_K - shift, stride_am, stride_ak, BLOCK_M, BLOCK_K)
            acc = tl.dot(a, b.T, acc)
            a = after
    acc = tl.dot(a_edges, b_edges.T, acc)
    out_ptrs = out_ptr + tl.program_id(1).to(tl.int64) * stride_op
    out_ptrs += offs_m.to(tl.int64)[:, None] * stride_om + n.to(tl.int64)[None, :] * stride_on
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=of_a & (n[None, :] < N))


def launch_staggered(a, b, tf32=False, *, config):
    """Launch the kernel, and the sum where there are several parts; what begins off 16 bytes goes to another."""
    c, k = empty_product(a, b), a.shape[1]
    if not k:
        return c.zero_()
    if not c.numel():
        return c
    if not reads_staggered(a, b):
        values = (16, 128, 128, 8, 1, 4, 5)
        return launch_split_descriptor(a, b, tf32, config=dict(zip(SPLIT_DESCRIPTOR_SPACE, values, strict=True)))
    count = parts_of_positions(k, config)
    parts = c[None] if count == 1 else empty_parts(c, count)
    multiply_staggered(a, b, parts, config=config)
    return c if count == 1 else sum_parts(parts, c)


def _few_and_matrix(a, b):
    """The operand of few rows and the matrix; of few columns, those of the transposed product."""
    return (a, b) if a.shape[0] <= b.shape[1] else (b.t(), a.t())


def reads_staggered(a, b):
    """Whether :func:`multiply_staggered` takes a [m, k] and b [k, n]."""
    x, w = _few_and_matrix(a, b)
    few = x.shape[0] <= _MOST_ROWS and x.element_size() == 2
    return few and w.stride(0) == 1 and w.stride(1) > 0 and w.data_ptr() % 16 == 0


def _positions(k):
    """Of a row of k elements in whole 16 bytes, wherever it begins."""
    return k + _WIDTH - 1


def parts_of_positions(k, config):
    """Parts that are not empty: of SPLITS, where rows of k elements have so many blocks."""
    return count_of_parts(_positions(k), config)


def multiply_staggered(a, b, parts, *, config):
    """Write products of parts of K into ``parts`` [count, m, n], which add up to A B; none of the sizes is 0."""
    out = parts if a.shape[0] <= b.shape[1] else parts.mT
    x, w = (as_interpreted(operand) for operand in _few_and_matrix(a, b))
    (m, k), n, stride = x.shape, w.shape[1], w.stride(1)
    rows, classes, early = _rows_of_tile(m), _WIDTH // math.gcd(stride, _WIDTH), bool(config["COPIES"])
    length, copies = cdiv(_positions(k), _COPY) * _COPY, x
    if early:
        copies = torch.empty((classes, rows, length), dtype=x.dtype, device=x.device)
        launch(
            _shift_kernel, (rows, length // _COPY, classes), x, copies, m, k, *x.stride(), stride, length,
            ROWS=rows, WIDTH=_WIDTH, BLOCK=_COPY, num_warps=4,
        )  # fmt: skip
    grid = _tiles(n, classes, config["BLOCK_N"]), out.shape[0]
    part = part_of_k(_positions(k), config["SPLITS"], config["BLOCK_K"])
    args = x, copies, w, out, m, n, k, part, length, *x.stride(), stride, out.stride(1), out.stride(2), out.stride(0)
    meta = {
        "BLOCK_M": rows, "BLOCK_N": config["BLOCK_N"], "BLOCK_K": config["BLOCK_K"], "CLASSES": classes,
        "WIDTH": _WIDTH, "COPIES": early, "STAGES": _STAGES, "num_warps": config["num_warps"],
    }  # fmt: skip
    if early:
        launch_early(_staggered_kernel, grid, x.device, *args, **meta)
    else:
        launch(_staggered_kernel, grid, *args, **meta, EARLY=False)


def _rows_of_tile(m):
    return max(16, triton.next_power_of_2(m))


def _tiles(n, classes, block_n):
    return cdiv(cdiv(n, classes), block_n) * classes


def staggered(launch: Callable, layout: Callable[[Case], str] = layout_of, least: int = 2) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n], which lie as ``layout(case)`` says.

    ``least``: rows, or columns.  Where nothing else multiplies a vector, one is as good as two.
    """
    return Variant(
        name="staggered",
        summary="few rows times a matrix off 16 bytes along K, read at whole ones: rows that lie alike in a tile",
        launch=launch,
        space=STAGGERED_SPACE,
        default=_CHOICE.default,
        fits=_CHOICE.fits,
        handles=functools.partial(_handles, layout, least),
        needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
        follows="odd_rows",
    )


def _handles(layout: Callable, least: int, problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if element_size(problem.dtype) != 2:
        return "for tensor cores' 16 bits"
    m, n, k, (of_a, of_b) = problem["m"], problem["n"], problem["k"], layout(problem)
    if not least <= min(m, n) <= _MOST_ROWS:
        return f"{least} to {_MOST_ROWS} rows or columns are few"
    if (of_b if m <= n else of_a) != ("T" if m <= n else "N"):
        return "rows across K are `shifted`'s"
    if k % _WIDTH == 0:
        return "rows at whole 16 bytes are read by the copy engine"
    if gpu.functional:
        return ""
    if k < _LEAST_K:
        return "rows of little more than the 16 bytes in which they begin and end"
    fewest_bytes = max(_LEAST_BYTES[_rows_of_tile(min(m, n))], 0 if k % 2 else _LEAST_OF_EVEN)
    if max(m, n) * k * element_size(problem.dtype) < fewest_bytes:
        return "the matrix is copied in little more than the time of a launch"
    return ""


def _microseconds(config: Config, problem: Case, gpu: GPU) -> float:
    """About how long a product takes: all programs on their SMs, or one alone, and part of the shorter of the two."""
    (few, many), size = sorted((problem["m"], problem["n"])), element_size(problem.dtype)
    block_n, block_k, splits, copies = (config[name] for name in ("BLOCK_N", "BLOCK_K", "SPLITS", "COPIES"))
    rows, part = _rows_of_tile(few), part_of_k(_positions(problem["k"]), splits, block_k)
    buffers = _STAGES if rows == 64 else _STAGES - 1
    at_once = min(_AT_ONCE, gpu.shared_bytes // (buffers * (rows + block_n) * block_k * size))
    if not at_once:
        return math.inf
    count = cdiv(_positions(problem["k"]), part)
    programs = count * _tiles(many, _WIDTH // math.gcd(problem["k"], _WIDTH), block_n)
    read = part * (block_n + _OF_A * rows) * size
    alone = read / _ALONE + _PROGRAM + (0.0 if copies else part / block_k * _BLOCK)
    times = programs / gpu.sms * (read / _BYTES + _PROGRAM / at_once), alone
    summed = _SUM + 4 * count * few * many / (_PASS * gpu.sms) if count > 1 else 0.0
    return max(times) + _HIDDEN * min(times) + copies * _COPIES + summed


def _wasteful(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config is not worth an estimate."""
    if config["SPLITS"] > 1 and _positions(problem["k"]) < 2 * config["SPLITS"] * config["BLOCK_K"]:
        return "parts of less than two blocks"
    if not config["COPIES"] and _rows_of_tile(min(problem["m"], problem["n"])) > 16:
        return "many rows are read an element at a time for each block"
    return ""


_CHOICE = Estimated(STAGGERED_SPACE, _microseconds, _wasteful, _NEAR)
