"""Which keys a block of queries sees through a window, and how kernels read blocks of a mask.

A window is two numbers, ``left`` and ``right``: query i sees the keys i + shift - left … i + shift + right.  Kernels
have them as distances; launchers as counts, the query's own key among them, with 0 for all (:func:`distance`).

Heads of 65 to 96 columns are computed in two parts, BLOCK_D columns and REST behind them: in one of 128 columns up to
half of all would be zeros.  REST is 0 for heads in one part; device functions have blocks as tuples of one or two.
"""

import math

import triton
import triton.language as tl

from kernels.attention.blocks import as_read, block_d, head_of, read_rows, write_rows


@triton.jit
def parts_of_head(
    x, rest, batch, head, first, stride_xb, stride_xh, stride_xs, REST: tl.constexpr, DESCRIPTORS: tl.constexpr
):  # fmt: skip
    """:func:`head_of` of each part; ``rest`` is what holds the columns behind the first part's."""
    parts = (head_of(x, batch, head, first, stride_xb, stride_xh, stride_xs, DESCRIPTORS),)
    if REST:
        parts = (parts[0], head_of(rest, batch, head, first, stride_xb, stride_xh, stride_xs, DESCRIPTORS))
    return parts


@triton.jit
def read_parts(
    x, batch, head, first, rows, stride_xs,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr, MASKED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """:func:`read_rows` of each part."""
    parts = (read_rows(x[0], batch, head, first, rows, stride_xs, HEAD_DIM, BLOCK, BLOCK_D, MASKED, DESCRIPTORS),)
    if REST:
        rest = read_rows(
            x[1], batch, head, first, rows, stride_xs, HEAD_DIM - BLOCK_D, BLOCK, REST, MASKED, DESCRIPTORS
        )  # fmt: skip
        parts = (parts[0], rest)
    return parts


@triton.jit
def write_parts(
    x_ptr, x, first, rows, stride_xs,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """:func:`write_rows` of each part."""
    write_rows(x_ptr, x[0], first, rows, stride_xs, HEAD_DIM, BLOCK, BLOCK_D, ALIGNED)
    if REST:
        write_rows(x_ptr + BLOCK_D, x[1], first, rows, stride_xs, HEAD_DIM - BLOCK_D, BLOCK, REST, ALIGNED)


@triton.jit
def zero_parts(BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr):
    """Sums of BLOCK rows."""
    parts = (tl.zeros((BLOCK, BLOCK_D), tl.float32),)
    if REST:
        parts = (parts[0], tl.zeros((BLOCK, REST), tl.float32))
    return parts


@triton.jit
def dot_parts(x, y, REST: tl.constexpr, PRECISION: tl.constexpr):
    """x y^T, summed over the columns of all parts."""
    sums = tl.dot(x[0], tl.trans(y[0]), input_precision=PRECISION)
    if REST:
        sums = tl.dot(x[1], tl.trans(y[1]), sums, input_precision=PRECISION)
    return sums


@triton.jit
def add_dots(x, y, sums, REST: tl.constexpr, PRECISION: tl.constexpr):
    """``sums`` + x y, where y and sums are in parts."""
    parts = (tl.dot(x, y[0], sums[0], input_precision=PRECISION),)
    if REST:
        parts = (parts[0], tl.dot(x, y[1], sums[1], input_precision=PRECISION))
    return parts


@triton.jit
def keys_within(first, len_k, shift, left, right, WINDOW: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(start, since, whole, end): BLOCK_M queries from ``first`` on see no key before ``start`` or from ``end`` on.

    Each sees all from ``since`` to ``whole``, so blocks between the two need no window.  ``start`` and ``whole`` are
    multiples of BLOCK_N.  Where there are keys there is a block to visit, even if nothing of it is seen: compilers
    may count on it.
    """
    start, since, whole, end = 0, 0, len_k, len_k
    if WINDOW:
        last = first + BLOCK_M - 1
        start = tl.maximum(tl.minimum(first + shift - left, len_k - 1), 0) // BLOCK_N * BLOCK_N
        since = last + shift - left
        whole = tl.maximum(tl.minimum(first + shift + right + 1, len_k), 0)
        end = tl.minimum(tl.maximum(last + shift + right + 1, start + 1), len_k)
    return start, since, whole // BLOCK_N * BLOCK_N, end


@triton.jit
def queries_within(first, len_q, shift, left, right, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(start, since, until, end): no query before ``start`` or from ``end`` on sees one of BLOCK_N keys.

    All from ``since`` on to before ``until`` see all of them.  ``start`` is a multiple of BLOCK_M.
    """
    last = first + BLOCK_N - 1
    start = tl.maximum(first - shift - right, 0) // BLOCK_M * BLOCK_M
    since = last - shift - right
    until = first - shift + left + 1
    end = tl.minimum(tl.maximum(last - shift + left + 1, 0), len_q)
    return start, since, until, end


@triton.jit
def inside(offs_m, offs_n, len_k, shift, left, right, WINDOW: tl.constexpr):
    """Whether query ``offs_m`` sees key ``offs_n`` by window and length, for columns of one and rows of the other."""
    seen = offs_n < len_k
    if WINDOW:
        ahead = offs_n - (offs_m + shift)
        seen = seen & (ahead <= right) & (ahead >= -left)
    return seen


@triton.jit
def read_mask(
    mask_ptr, first_m, first_n, len_q, len_k, stride_mm, stride_mn,
    MASK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TAIL: tl.constexpr, KEYS_FIRST: tl.constexpr,
):  # fmt: skip
    """The mask of BLOCK_M queries and BLOCK_N keys; with KEYS_FIRST its rows are keys.

    One for "keys" is read once for all queries, as fp32, of bools as 0 and -inf: what is the same for all need not lie
    in registers for each.  TAIL is 0 where all keys are there, else a row holds them up to a multiple of it, so that
    reads are as wide as without; what is not there is False, or 0.
    """
    mask_ptr += tl.cast(first_n, tl.int64) * stride_mn
    rows, columns = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    axis: tl.constexpr = 1 if KEYS_FIRST else 0
    held = len_k
    if TAIL:
        held = tl.cdiv(len_k, TAIL) * TAIL - first_n
    if MASK == "bool keys" or MASK == "added keys":
        mask_ptrs = mask_ptr + columns * stride_mn
        row = tl.load(mask_ptrs, mask=columns < held, other=0) if TAIL else tl.load(mask_ptrs)
        row = tl.where(row, 0.0, -float("inf")) if MASK == "bool keys" else row.to(tl.float32)
        block = tl.expand_dims(row, axis)
    else:
        rows, columns = tl.expand_dims(rows, 1 - axis), tl.expand_dims(columns, axis)
        there = first_m + rows < len_q
        if TAIL:
            there = there & (columns < held)
        mask_ptr += tl.cast(first_m, tl.int64) * stride_mm
        block = tl.load(mask_ptr + (rows * stride_mm + columns * stride_mn), mask=there, other=0)
    return block


@triton.jit
def mask_of(mask_ptr, batch, head, stride_mb, stride_mh, stride_mm, STEP: tl.constexpr):
    """(pointer to a head's mask, its stride of queries): all known to be multiples of STEP elements.

    Else compilers know of a stride that is no multiple of 16 nothing, and read two bytes at a time.
    """
    mask_ptr += batch * (stride_mb // STEP * STEP) + tl.cast(head, tl.int64) * (stride_mh // STEP * STEP)
    return mask_ptr, stride_mm // STEP * STEP


def distance(keys, length):
    """How far a window of ``keys`` reaches, the query's own key counted; 0, for all, is as far as any ``length``."""
    return keys - 1 if keys else length


def keys_seen(left, right, len_k):
    """Most keys that a query sees through a window of so many on either side, where 0 is all."""
    return min(len_k, left + right) if left and right else len_k


def mask_strides(mask):
    """Of batch, head, query and key, 0 where the mask is the same for all; four times None without a mask."""
    if mask is None:
        return (None,) * 4
    return tuple(0 if size == 1 else stride for size, stride in zip(mask.shape, mask.stride(), strict=True))


def tail_of(mask, len_k, columns):
    """TAIL of :func:`read_mask` for blocks of so many keys."""
    there = len_k if mask is None else max(len_k, mask.shape[3])  # of a copy's rows more
    return 0 if len_k % columns == 0 else math.gcd(there, 16)


def step_of(mask):
    """STEP of :func:`mask_of`."""
    return math.gcd(*mask_strides(mask)[:3], 16) if mask is not None else 1


def columns_of(head_dim):
    """(BLOCK_D, REST) of a head."""
    if 64 < head_dim <= 96:
        return 64, block_d(head_dim - 64)
    return block_d(head_dim), 0


def parts_as_read(tensors, rows, descriptors, columns, rest):
    """(what kernels read, the same of the parts behind it or Nones, whether all are descriptors): see ``as_read``.

    ``columns`` and ``rest`` are of the two parts, as of :func:`columns_of`.
    """
    whole, descriptors = as_read(tensors, rows, descriptors)
    if not rest:
        return whole, [None] * len(whole), descriptors
    first, behind = ([x[..., part] for x in tensors] for part in (slice(columns), slice(columns, None)))
    return as_read(first, rows, descriptors)[0], *as_read(behind, rows, descriptors)


def kind_of(mask):
    """What a case calls a mask [b or 1, h or 1, l or 1, s or 1]: "none", "bool" or "added", or of "keys" alone."""
    if mask is None:
        return "none"
    kind = "bool" if mask.element_size() == 1 else "added"
    return f"{kind} keys" if mask.shape[2] == 1 or not mask.stride(2) else kind
