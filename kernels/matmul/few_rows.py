"""The variant `few_rows` of products of fp32: a few rows times a matrix, which is read once, by FMA.

Such a product is bound by reading the matrix, and FMA is fast enough for it: ``tl.dot`` by FMA goes through shared
memory for every number, and 7 x 4096 x 4096 NT took 93 us so, 33 here (H200).  Tensor cores would want the matrix
turned where it does not lie along K.  Here each thread multiplies 16 bytes at a time of the matrix with all rows, and
adds up what falls into one column before it keeps it: only the last step adds across threads.  In the precision of
fp32, which is more than a product of tf32 asks for.
"""

import functools
from collections.abc import Callable

import triton
import triton.language as tl
from atlas.declaration import GPU, Capability, Case, Config, Variant
from atlas.operators import launch

from kernels.common.parts import count_of_parts, empty_parts, part_of_k, sum_parts
from kernels.common.products import layout_of

from .registers import goes_through_registers
from .thin import part_bounds, width_of
from .tiled import empty_product

FEW_ROWS_SPACE = {
    "BLOCK_N": (16, 32, 64),
    "BLOCK_K": (128,),
    "SPLITS": (1, 2, 3, 4, 6, 8, 12, 16),
    "num_warps": (4,),
    "num_stages": (3,),
}

_MOST_ROWS, _MOST_ALONG_K = 8, 16
"""Of a matrix by rows, and of one along K.  Sums of 16 fill the registers: 12 x 4096 x 4096 by rows takes 47 us, for 32
to 35 of `split_descriptor`, whose tile is the same for all; but along K that takes 91, and 16 rows 49 here (H200)."""
_MOST_BESIDE_COPIES = 4
"""Where `split_descriptor` is there, or tf32's `registers`, of rows beside a matrix by rows; of either off 16 bytes.

The more there are, the more of them is read beside each block of the matrix, or of one along K off 16 bytes, whose
elements come one by one: 5 x 1000 x 4096 TN takes 29 us, for 19 of `split_descriptor`, 8 x 4096 x 4097 NT 197, for 148
with its copies (H100); 4 x 4096 x 4096 TN 31 for 34 (H200).  In tf32 8 x 2048 x 4096 TN takes 36, for 28 (H100).
"""
_MOST_BYTES_OF_TF32 = 2**25
"""Of a matrix by rows.  `registers` has less to do for each byte, but copies or adds up first."""


@triton.jit
def _few_rows_kernel(
    x_ptr, w_ptr, out_ptr, M, N, K, K_PART, stride_xm, stride_xk, stride_w, stride_om, stride_on,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, WIDTHS: tl.constexpr,
    ALONG_K: tl.constexpr,
):  # fmt: skip
    """out[part, m, n] = sum over a part of K of x[m, k] w[k, n]: program (tile, part) owns BLOCK_N columns of all rows.

    ``stride_w`` is from one row of w to the next, or from one column where they lie ALONG_K.  A warp reads lines of 128
    bytes, as wide as four of them are apart; the warps share a block's K.  WIDTHS divide N, K and ``stride_w``: so
    said, the compiler reads as many elements at once.

    Sums go axis by axis: the lanes of two axes merged into one may be apart, and Triton 3.6 then adds up others.
    """
    GROUPS: tl.constexpr = BLOCK_K // 32
    N, K, stride_w = N // WIDTHS[0] * WIDTHS[0], K // WIDTHS[1] * WIDTHS[1], stride_w // WIDTHS[2] * WIDTHS[2]
    first = tl.program_id(0) * BLOCK_N
    start, end = part_bounds(tl.program_id(1), K, K_PART)
    rows = tl.arange(0, ROWS)
    x_rows = x_ptr + rows.to(tl.int64) * stride_xm
    groups = tl.arange(0, GROUPS) * 32
    if ALONG_K:  # columns first: [columns of a thread, warps, lanes, 32 of k]
        COLUMNS: tl.constexpr = BLOCK_N // 4
        columns = first + tl.arange(0, COLUMNS)[:, None, None, None] * 4 + tl.arange(0, 4)[None, None, :, None]
        of_k = groups[:, None] + tl.arange(0, 32)[None, :]
        acc = tl.zeros((ROWS, COLUMNS, GROUPS, 4, 8), tl.float32)
        for k in tl.range(start, end, BLOCK_K, num_stages=STAGES):
            inside = (columns < N) & (of_k[None, :, None, :] < end - k)
            offs = columns.to(tl.int64) * stride_w + (k + of_k)[None, :, None, :]
            w = tl.load(w_ptr + offs, mask=inside, other=0.0)
            there = (rows[:, None, None] < M) & (of_k[None] < end - k)
            x = tl.load(x_rows[:, None, None] + (k + of_k).to(tl.int64)[None] * stride_xk, mask=there, other=0.0)
            w = w.to(tl.float32).reshape(1, COLUMNS, GROUPS, 4, 8, 4)
            acc += tl.sum(x.to(tl.float32).reshape(ROWS, 1, GROUPS, 1, 8, 4) * w, axis=5)
        out = tl.sum(tl.sum(acc, axis=4), axis=2).reshape(ROWS, BLOCK_N)
    else:  # steps of k first: [8 of a thread, warps, lanes, columns]
        columns = first + tl.arange(0, BLOCK_N)
        of_k = tl.arange(0, 8)[:, None, None] + groups[None, :, None] + tl.arange(0, 4)[None, None, :] * 8
        acc = tl.zeros((ROWS, GROUPS, 4, BLOCK_N), tl.float32)
        for k in tl.range(start, end, BLOCK_K, num_stages=STAGES):
            inside = (of_k[:, :, :, None] < end - k) & (columns < N)[None, None, None, :]
            offs = (k + of_k).to(tl.int64)[:, :, :, None] * stride_w + columns[None, None, None, :]
            w = tl.load(w_ptr + offs, mask=inside, other=0.0)
            there = (rows[:, None, None, None] < M) & (of_k[None] < end - k)
            x = tl.load(x_rows[:, None, None, None] + (k + of_k).to(tl.int64)[None] * stride_xk, mask=there, other=0.0)
            acc += tl.sum(x.to(tl.float32)[:, :, :, :, None] * w.to(tl.float32)[None], axis=1)
        out = tl.sum(tl.sum(acc, axis=2), axis=1)
    offs_n = first + tl.arange(0, BLOCK_N)
    out_ptr += tl.program_id(1).to(tl.int64) * M * N
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * stride_om + offs_n.to(tl.int64)[None, :] * stride_on
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=(rows[:, None] < M) & (offs_n[None, :] < N))


def launch_few_rows(a, b, tf32=False, *, config):
    """Launch ``_few_rows_kernel`` and, of several parts of K, ``_sum_kernel``."""
    c, k = empty_product(a, b), a.shape[1]
    if not k:
        return c.zero_()
    if not c.numel():
        return c
    count = count_of_parts(k, config)
    parts = c[None] if count == 1 else empty_parts(c, count)
    multiply_few_rows(a, b, parts, config=config)
    return c if count == 1 else sum_parts(parts, c)


def multiply_few_rows(a, b, parts, *, config):
    """Write products of parts of K into ``parts`` [count, m, n]; of few columns, the transposes' transposed."""
    x, w, out = (a, b, parts[0]) if a.shape[0] <= b.shape[1] else (b.t(), a.t(), parts[0].t())
    if 1 not in w.stride():
        w = w.contiguous()
    along_k = w.stride(0) == 1
    (m, n), k, stride_w = out.shape, a.shape[1], w.stride(1 if along_k else 0)
    launch(
        _few_rows_kernel, (triton.cdiv(n, config["BLOCK_N"]), parts.shape[0]),
        x, w, parts, m, n, k, part_of_k(k, config["SPLITS"], config["BLOCK_K"]), *x.stride(), stride_w, *out.stride(),
        ROWS=rows_of_tile(m), BLOCK_N=config["BLOCK_N"], BLOCK_K=config["BLOCK_K"], STAGES=config["num_stages"],
        WIDTHS=tuple(width_of(length, w) for length in (n, k, stride_w)), ALONG_K=along_k,
        num_warps=config["num_warps"],
    )  # fmt: skip


def few_rows(
    launch: Callable, layout: Callable[[Case], str] = layout_of, least: int = 2, follows: str = "split"
) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n], which lie as ``layout(case)`` says; ``least``: rows.

    ``follows`` names the variant that it is a step from.
    """
    return Variant(
        name="few_rows",
        summary="fp32 by FMA: 8 rows, or 16, times a matrix that is read once, wherever it lies",
        launch=launch,
        space=FEW_ROWS_SPACE,
        default=functools.partial(_default, layout),
        fits=functools.partial(_fits, layout),
        handles=functools.partial(_handles, layout, least),
        follows=follows,
    )


def rows_of_tile(m):
    """Rows that a thread keeps sums of."""
    return max(2, triton.next_power_of_2(m))


def _handles(layout: Callable, least: int, problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if problem.dtype not in ("fp32", "tf32"):
        return "for fp32: 16 bits are tensor cores'"
    if not gpu.functional and (gpu.backend != "cuda" or int(gpu.arch) < 80):
        return "blocks wait in registers, which spill, where none are copied asynchronously"
    (few, many), along_k = sorted((problem["m"], problem["n"])), _lies_along_k(layout, problem)
    if problem.dtype == "tf32" and (along_k or 4 * problem["k"] * many > _MOST_BYTES_OF_TF32):
        return "tensor cores read a matrix along K as it lies, and a large one outweighs copies and parts"
    known = layout(problem) == "NT" and problem["k"] % 16 == 0 and many % 16 == 0  # else sums of 16 rows spill
    most = _MOST_ALONG_K if known else _MOST_ROWS
    if Capability.TENSOR_DESCRIPTORS in gpu.capabilities and not gpu.functional:
        wide = problem["m"] <= problem["n"]  # few columns have no tile of so few
        if problem.dtype == "fp32" and wide and not along_k and layout(problem)[0] == "N":
            return "`split_descriptor` reads rows along K, and a matrix by rows, as they lie"
        taken = problem.dtype == "fp32" or not goes_through_registers(problem, gpu)
        if (problem["k"] % 4 != 0) if along_k else (wide and taken):
            most = _MOST_BESIDE_COPIES
    return "" if least <= few <= most else f"{least} to {most} rows or columns are few"


def _lies_along_k(layout: Callable, problem: Case) -> bool:
    of_a, of_b = layout(problem)
    return of_b == "T" if problem["m"] <= problem["n"] else of_a == "N"


def _widest(layout: Callable, problem: Case) -> int:
    """The most columns of a program, so that its sums and what is read beside them stay in registers."""
    rows = rows_of_tile(min(problem["m"], problem["n"]))
    if rows == 16:
        return 16
    widest = 32 if rows == 8 else 64
    return widest // 2 if _lies_along_k(layout, problem) and problem["k"] % 4 else widest  # an address for each element


_TOGETHER = 3
"""Programs of 4 warps that an SM has room for."""
_BYTES = 3.0e4
"""Of memory that an SM's share of the bandwidth moves in a microsecond (H200)."""
_PROGRAM, _SUM = 2.0, 1.5
"""Microseconds for a program's begin and end, and for the kernel that adds parts up."""


def _microseconds(block_n: int, splits: int, problem: Case, gpu: GPU) -> float:
    """About how long a product takes: an SM's programs share its bandwidth, and few of them do not reach it."""
    part = max(128, part_of_k(problem["k"], splits, 128))
    programs = triton.cdiv(max(problem["m"], problem["n"]), block_n) * triton.cdiv(problem["k"], part)
    full, rest = divmod(programs, _TOGETHER * gpu.sms)
    of_one = part * block_n * 4 / _BYTES
    last = max(2, triton.cdiv(rest, gpu.sms)) if rest else 0
    rounds = full + bool(rest)
    return (full * _TOGETHER + last) * of_one + rounds * _PROGRAM + (_SUM if part < problem["k"] else 0.0)


def _parts(problem: Case) -> list[int]:
    """Numbers of parts that leave each at least two blocks; always one part."""
    return [s for s in FEW_ROWS_SPACE["SPLITS"] if s == 1 or problem["k"] >= 2 * 128 * s]


def _best(layout: Callable, problem: Case, gpu: GPU) -> tuple[float, int, int]:
    """The shortest time by the estimate, its BLOCK_N and its parts."""
    widest = _widest(layout, problem)
    return min(
        (_microseconds(block_n, splits, problem, gpu), block_n, splits)
        for block_n in (min(32, widest), widest)
        for splits in _parts(problem)
    )


def _fits(layout: Callable, config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot be the best."""
    widest, splits = _widest(layout, problem), config["SPLITS"]
    if config["BLOCK_N"] > widest:
        return "more sums than registers hold"
    if config["BLOCK_N"] < min(32, widest):
        return "as much of the rows is read for each byte of the matrix as of that"
    if splits not in _parts(problem):
        return "parts of less than two blocks"
    late = _microseconds(config["BLOCK_N"], splits, problem, gpu) > 1.3 * _best(layout, problem, gpu)[0]
    return "other parts should end sooner" if late else ""


def _default(layout: Callable, problem: Case, gpu: GPU) -> dict[str, int]:
    _, block_n, splits = _best(layout, problem, gpu)
    return dict(zip(FEW_ROWS_SPACE, (block_n, 128, splits, 4, 3), strict=True))
