"""Reductions over one axis or over all elements: sum, mean, amax, and max with the indices of the maxima.

A contiguous tensor is [outer, n, inner], and for each o and i

    sum = sum_j x[o, j, i],  mean = sum / n,  amax = max_j x[o, j, i],  max = amax and the least j that attains it.

Forward reads x once and writes outer * inner results, so memory bounds it; what there is to lose is time in which too
few bytes are in flight: few outputs, of which each must be shared by many programs, and their combination.  Arithmetic
is fp32 whatever the dtype.  A NaN is the maximum wherever it stands, as in torch.

Backward of sum and mean is dout as a view with strides of 0, as in torch: nothing is read or written.  Of amax it is
dx = [x = out] * dout / ties, where `ties`, how many elements attain the maximum, comes from the forward pass: it reads
x and writes dx.  Of max it is dx = [j = index] * dout, which writes dx alone.

Variants: `rows` holds whole rows in registers (inner = 1); `stream` reads rows of any length, or parts of them, block
after block (inner = 1); `columns` does so with blocks of rows and columns (inner > 1).  Where there are few outputs
each is shared by several programs, and the last of them to end combines their partial results: one launch.
`stream_twice` and `columns_twice` combine them in a second launch.  Either order of combining is fixed, so two runs
agree bit by bit.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    GPU,
    Case,
    Declaration,
    Pass,
    Variant,
    case,
    choose,
    compiled,
    compiled_gradients,
    cuda,
    eager,
    element_size,
    gpu_of,
    gradients,
    torch_dtype,
)
from atlas.declaration.rows import OTHER_REGISTERS, REGISTERS, THREAD_REGISTERS, VECTOR_BYTES
from atlas.operators import FP32, CustomOperator, Differentiable, autocast_rule, autocasting, derivative_wanted, launch

from kernels.common.axes import axis_of

__all__ = ["amax", "max", "mean", "sum"]

_largest = max  # the builtin: the public function below takes its name

TAG = tl.constexpr(0x7FF8A71A5C3D)
"""The upper 48 bits of a counter in use.

Memory comes uninitialised, and a launch that zeroes it would be a second one.  A word that does not hold the tag is no
counter yet.  With what follows it the tag is a NaN with a payload, of fp64, fp32 and bf16 alike, which no arithmetic
leaves behind, and the last program takes it away.  So a counter needs no memory that outlives the call: calls on
several streams and in CUDA graphs have each their own, as they have their results."""

NO_INDEX = tl.constexpr(2**31 - 1)
"""The index of no element: the identity of min, by which the first of several maxima is found."""


@triton.jit
def _pad(OP: tl.constexpr):
    """The operation's identity, as which elements count that are not there."""
    return 0.0 if OP == "sum" or OP == "mean" else -float("inf")


@triton.jit
def _start(x, block, valid, OP: tl.constexpr):
    """State after a first element at each place: x, and beside it how many ties there are, or which block it is from.

    Of a block and the place in it the index is made at the end: a register less for each element meanwhile.
    """
    beside = x
    if OP == "ties":
        beside = tl.where(valid & (x == x), 1.0, 0.0)  # a NaN equals nothing and has none
    if OP == "max":
        beside = tl.where(valid, block + tl.zeros(x.shape, tl.int32), NO_INDEX)
    return x, beside


@triton.jit
def _fold(acc, beside, x, block, valid, OP: tl.constexpr):
    """State after one more element at each place; ``block`` grows from call to call, so the first maximum stays."""
    if OP == "sum" or OP == "mean":
        new = acc + x
    elif OP == "max":
        better = ((x <= acc) == 0) & (acc == acc) & valid  # larger, or the first NaN
        new = tl.where(better, x, acc)
        beside = tl.where(better, block, beside)
    else:
        new = tl.maximum(acc, x, propagate_nan=tl.PropagateNan.ALL)
        if OP == "ties":
            beside = tl.where(acc == new, beside, 0.0) + tl.where((x == new) & valid, 1.0, 0.0)
    return new, beside


@triton.jit
def _peak(x, axis: tl.constexpr):
    """The maximum along an axis, NaN where there is one: ``tl.max`` would drop it.

    As integers that order as the numbers do, with NaN above infinity.
    """
    bits = x.to(tl.int32, bitcast=True)
    key = tl.max(tl.where(x == x, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF), axis=axis)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _collapse(acc, beside, axis: tl.constexpr, OP: tl.constexpr):
    """State of all places along an axis."""
    if OP == "sum" or OP == "mean":
        result = tl.sum(acc, axis=axis)
        beside = result
    else:
        result = _peak(acc, axis)
        along = tl.expand_dims(result, axis)
        if OP == "amax":
            beside = result
        elif OP == "ties":
            beside = tl.sum(tl.where(acc == along, beside, 0.0), axis=axis)
        else:
            attained = (acc == along) | ((acc != acc) & (along != along))
            beside = tl.min(tl.where(attained, beside, NO_INDEX), axis=axis)
    return result, beside


@triton.jit
def _write(out_ptr, beside_ptr, offs, value, beside, n, mask, OP: tl.constexpr):
    """Store results, and indices or ties where the operation has them."""
    if OP == "mean":
        value = tl.div_rn(value, tl.cast(n, tl.float32))
    tl.store(out_ptr + offs, value, mask=mask)
    if OP == "ties" or OP == "max":
        tl.store(beside_ptr + offs, beside, mask=mask)


@triton.jit
def _write_part(part_ptr, offs, value, beside, parts, mask, OP: tl.constexpr):
    """Store partial results among ``parts`` of them, and behind these what stands beside them, as bits of fp32."""
    tl.store(part_ptr + offs, value, mask=mask)
    if OP == "ties" or OP == "max":
        tl.store(part_ptr + parts + offs, beside.to(tl.float32, bitcast=True), mask=mask)


@triton.jit
def _combine(part_ptr, offs, splits, outputs, mask, SPLITS: tl.constexpr, OP: tl.constexpr):
    """The results at ``offs`` [1, C] from all their parts, in the order of the splits.

    Read from L2, where other programs wrote them: what L1 holds may be older.
    """
    offs_s = tl.arange(0, SPLITS)[:, None]
    valid = (offs_s < splits) & mask
    place = part_ptr + offs_s * outputs + offs
    acc = tl.load(place, mask=valid, other=_pad(OP), cache_modifier=".cg")
    beside = acc
    if OP == "ties":
        beside = tl.load(place + splits * outputs, mask=valid, other=0.0, cache_modifier=".cg")
    if OP == "max":
        bits = tl.load(place + splits * outputs, mask=valid, other=0.0, cache_modifier=".cg")
        beside = tl.where(valid, bits.to(tl.int32, bitcast=True), NO_INDEX)
    return _collapse(acc, beside, 0, OP)


@triton.jit
def _open(counter_ptr):
    """Make the word a counter at 0, unless another program did: whatever it held was no tag."""
    fresh = tl.full([], TAG << 16, tl.int64)
    held = tl.atomic_cas(counter_ptr, tl.full([], 0, tl.int64), fresh, sem="relaxed")
    while (held != 0) & ((held >> 16) != TAG):
        seen = tl.atomic_cas(counter_ptr, held, fresh, sem="relaxed")
        held = tl.where(seen == held, fresh, seen)


@triton.jit
def _is_last(counter_ptr, splits):
    """Whether all other programs that share the counter have been here; what they stored before is then visible."""
    tl.debug_barrier()  # the one thread that counts releases what every thread of the program stored
    ticket = tl.atomic_add(counter_ptr, tl.full([], 1, tl.int64), sem="acq_rel")
    return (ticket & 0xFFFF) == splits - 1


@triton.jit
def _close(counter_ptr):
    """Take the tag away, so that nobody who is given this memory next finds a counter in use."""
    tl.store(counter_ptr, tl.full([], 0, tl.int64))


@triton.jit
def _rows_kernel(x_ptr, out_ptr, beside_ptr, outer, n, OP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                 WIDTH: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    """One program owns BLOCK_M rows; BLOCK_N >= n, so they are in registers at once.  EVEN: the tiles cover them."""
    n = n // WIDTH * WIDTH  # n is a multiple of WIDTH; so said, the compiler accesses WIDTH elements at once
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    mask = (rows[:, None] < outer) & (offs_n < n) | EVEN
    x = tl.load(x_ptr + rows[:, None] * n + offs_n, mask=mask, other=_pad(OP)).to(tl.float32)
    acc, beside = _start(x, offs_n, mask, OP)
    acc, beside = _collapse(acc, beside, 1, OP)
    _write(out_ptr, beside_ptr, rows, acc, beside, n, (rows < outer) | EVEN, OP)


@triton.jit
def _merge_ends(acc, beside, x_ptr, start, low, high, stop, here, OP: tl.constexpr, LANES: tl.constexpr,
                WIDTH: tl.constexpr):  # fmt: skip
    """State [LANES] with the elements of a row [start, stop) before its first whole lane, low, and past the last, high.

    Only ``here``: one of the programs that share a row takes them.
    """
    near = tl.arange(0, LANES)
    place = tl.where(near < WIDTH, start + near, high + near - WIDTH)
    valid = (place < stop) & ((near >= WIDTH) | (place < low)) & here
    x = tl.load(x_ptr + place, mask=valid, other=_pad(OP)).to(tl.float32)
    more, beside_more = _start(x, (place - start).to(tl.int32), valid, OP)
    if OP == "sum" or OP == "mean":
        new = acc + more
    elif OP == "max":
        same = (more == acc) | ((more != more) & (acc != acc))
        better = (more > acc) | ((more != more) & (acc == acc)) | (same & (beside_more < beside))
        new = tl.where(better, more, acc)
        beside = tl.where(better, beside_more, beside)
    else:
        new = tl.maximum(acc, more, propagate_nan=tl.PropagateNan.ALL)
        if OP == "ties":
            beside = tl.where(acc == new, beside, 0.0) + tl.where(more == new, beside_more, 0.0)
    return new, beside


@triton.jit
def _stream_kernel(x_ptr, out_ptr, beside_ptr, scratch_ptr, outer, n, splits, OP: tl.constexpr, LANES: tl.constexpr,
                   WIDTH: tl.constexpr, WHOLE: tl.constexpr, SPLITS: tl.constexpr, ONCE: tl.constexpr,
                   POLICY: tl.constexpr):  # fmt: skip
    """One program owns each ``splits``-th block of one row; SPLITS >= splits, and ONCE says to combine here.  POLICY
    is :func:`_policy`'s.

    Every place of a block has its own accumulator, so the sweep needs no exchange between threads.  Blocks consist of
    lanes, WIDTH elements that lie on 16 bytes; rows that are not WHOLE lanes have up to WIDTH - 1 more at either end.
    """
    BLOCK: tl.constexpr = LANES * WIDTH
    row = tl.program_id(0) // splits
    split = tl.program_id(0) % splits
    start = row.to(tl.int64) * n
    low = (start + WIDTH - 1) // WIDTH * WIDTH
    high = tl.maximum((start + n) // WIDTH * WIDTH, low)
    length = high - low
    first = tl.arange(0, LANES)[:, None] * WIDTH
    offs = first + tl.arange(0, WIDTH)[None, :]
    at = split.to(tl.int64) * BLOCK
    valid = first < tl.minimum(length - at, BLOCK).to(tl.int32)
    x = tl.load(x_ptr + low + at + offs, mask=valid, other=_pad(OP), eviction_policy=POLICY).to(tl.float32)
    counter_ptr = scratch_ptr.to(tl.pointer_type(tl.int64)) + row
    part_ptr = scratch_ptr + 2 * outer
    if SPLITS > 1 and ONCE:
        _open(counter_ptr)  # while the first block is on its way
    acc, beside = _start(x, split, valid, OP)
    full = (length // BLOCK).to(tl.int32)
    for block in tl.range(split + splits, full, splits):
        x = tl.load(x_ptr + low + tl.cast(block, tl.int64) * BLOCK + offs, eviction_policy=POLICY).to(tl.float32)
        acc, beside = _fold(acc, beside, x, block, True, OP)
    at = full.to(tl.int64) * BLOCK
    if (at < length) & (full % splits == split) & (full != split):
        rest = first < (length - at).to(tl.int32)
        x = tl.load(x_ptr + low + at + offs, mask=rest, other=_pad(OP), eviction_policy=POLICY).to(tl.float32)
        acc, beside = _fold(acc, beside, x, full, rest, OP)
    if OP == "max":
        beside = tl.where(beside == NO_INDEX, NO_INDEX, beside * BLOCK + offs + (low - start).to(tl.int32))
    acc, beside = _collapse(acc, beside, 1, OP)
    if not WHOLE:
        acc, beside = _merge_ends(acc, beside, x_ptr, start, low, high, start + n, split == 0, OP, LANES, WIDTH)
    acc, beside = _collapse(acc, beside, 0, OP)
    if SPLITS == 1:
        _write(out_ptr, beside_ptr, row, acc, beside, n, None, OP)
    else:
        _write_part(part_ptr, split * outer + row, acc, beside, splits * outer, None, OP)
        if ONCE:
            last = _is_last(counter_ptr, splits)
            if last:
                offs_o = row + tl.zeros([1, 1], tl.int32)
                whole, with_it = _combine(part_ptr, offs_o, splits, outer, offs_o >= 0, SPLITS, OP)
                _write(out_ptr, beside_ptr, row + tl.arange(0, 1), whole, with_it, n, None, OP)
                _close(counter_ptr)


@triton.jit
def _columns_kernel(x_ptr, out_ptr, beside_ptr, scratch_ptr, outer, n, inner, splits, OP: tl.constexpr,
                    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
                    SPLITS: tl.constexpr, ONCE: tl.constexpr, POLICY: tl.constexpr):  # fmt: skip
    """One program owns BLOCK_C columns of one of ``outer`` matrices, and of its blocks of BLOCK_R rows each
    ``splits``-th; SPLITS >= splits, and ONCE says to combine here.

    Every place of a block has its own accumulator.  EVEN says that blocks cover the columns exactly.
    """
    inner = inner // WIDTH * WIDTH  # as for rows
    blocks = tl.cdiv(inner, BLOCK_C)
    block = tl.program_id(0) % blocks
    split = tl.program_id(0) // blocks % splits
    matrix = tl.program_id(0) // (blocks * splits)
    offs_r = tl.arange(0, BLOCK_R)[:, None]
    offs_c = block * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    mask_c = (offs_c < inner) | EVEN
    x_ptr += matrix.to(tl.int64) * n * inner
    offs = offs_r.to(tl.int64) * inner + offs_c
    row = split * BLOCK_R
    mask = (row + offs_r < n) & mask_c
    down = row.to(tl.int64) * inner
    x = tl.load(x_ptr + down + offs, mask=mask, other=_pad(OP), eviction_policy=POLICY).to(tl.float32)
    counter_ptr = scratch_ptr.to(tl.pointer_type(tl.int64)) + matrix * blocks + block
    part_ptr = scratch_ptr + 2 * outer * blocks
    if SPLITS > 1 and ONCE:
        _open(counter_ptr)  # while the first rows are on their way
    acc, beside = _start(x, split, mask, OP)
    full = n // BLOCK_R
    for step in tl.range(split + splits, full, splits):
        down = tl.cast(step, tl.int64) * BLOCK_R * inner
        x = tl.load(x_ptr + down + offs, mask=mask_c, other=_pad(OP), eviction_policy=POLICY).to(tl.float32)
        acc, beside = _fold(acc, beside, x, step, mask_c, OP)
    if (full * BLOCK_R < n) & (full % splits == split) & (full != split):
        rest = (full * BLOCK_R + offs_r < n) & mask_c
        down = tl.cast(full, tl.int64) * BLOCK_R * inner
        x = tl.load(x_ptr + down + offs, mask=rest, other=_pad(OP), eviction_policy=POLICY).to(tl.float32)
        acc, beside = _fold(acc, beside, x, full, rest, OP)
    if OP == "max":
        beside = tl.where(beside == NO_INDEX, NO_INDEX, beside * BLOCK_R + offs_r)
    acc, beside = _collapse(acc, beside, 0, OP)
    offs_c = block * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_c = (offs_c < inner) | EVEN
    offs_o = matrix.to(tl.int64) * inner + offs_c
    if SPLITS == 1:
        _write(out_ptr, beside_ptr, offs_o, acc, beside, n, mask_c, OP)
    else:
        outputs = outer * inner
        _write_part(part_ptr, split * outputs + offs_o, acc, beside, splits * outputs, mask_c, OP)
        if ONCE:
            last = _is_last(counter_ptr, splits)
            if last:
                whole, with_it = _combine(part_ptr, offs_o[None, :], splits, outputs, mask_c[None, :], SPLITS, OP)
                _write(out_ptr, beside_ptr, offs_o, whole, with_it, n, mask_c, OP)
                _close(counter_ptr)


@triton.jit
def _combine_kernel(part_ptr, out_ptr, beside_ptr, outputs, n, splits, OP: tl.constexpr, BLOCK_C: tl.constexpr,
                    SPLITS: tl.constexpr):  # fmt: skip
    """One program owns BLOCK_C outputs, of which each has ``splits`` parts."""
    offs = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = offs < outputs
    acc, beside = _combine(part_ptr, offs[None, :], splits, outputs, mask[None, :], SPLITS, OP)
    _write(out_ptr, beside_ptr, offs, acc, beside, n, mask, OP)


@triton.jit
def _amax_backward_kernel(x_ptr, out_ptr, ties_ptr, dout_ptr, dx_ptr, rows, columns, BY_ROW: tl.constexpr,
                          BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """One program owns a tile of one matrix [rows, columns]; results are of its rows (BY_ROW), else of its columns."""
    offs_m, offs_n, offs_o, offs, mask = _tile(rows, columns, BY_ROW, BLOCK_M, BLOCK_N, WIDTH)
    mask_o = offs_m < rows if BY_ROW else offs_n < columns
    out = tl.load(out_ptr + offs_o, mask=mask_o, other=0.0).to(tl.float32)
    ties = tl.load(ties_ptr + offs_o, mask=mask_o, other=1.0)
    share = tl.load(dout_ptr + offs_o, mask=mask_o, other=0.0).to(tl.float32) / ties
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    # A product and no choice: 0 ties (the maximum is NaN) or an infinite dout give NaN beside it, as in torch.
    tl.store(dx_ptr + offs, tl.where(x == out, 1.0, 0.0) * share, mask=mask)


@triton.jit
def _max_backward_kernel(indices_ptr, dout_ptr, dx_ptr, rows, columns, BY_ROW: tl.constexpr, BLOCK_M: tl.constexpr,
                         BLOCK_N: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """One program owns a tile of one matrix [rows, columns]; results are of its rows (BY_ROW), else of its columns."""
    offs_m, offs_n, offs_o, offs, mask = _tile(rows, columns, BY_ROW, BLOCK_M, BLOCK_N, WIDTH)
    mask_o = offs_m < rows if BY_ROW else offs_n < columns
    indices = tl.load(indices_ptr + offs_o, mask=mask_o, other=-1)
    dout = tl.load(dout_ptr + offs_o, mask=mask_o, other=0.0).to(tl.float32)
    tl.store(dx_ptr + offs, tl.where(indices == (offs_n if BY_ROW else offs_m), dout, 0.0), mask=mask)


@triton.jit
def _tile(rows, columns, BY_ROW: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr):
    """Rows and columns that a program of the backward kernels owns; offsets and mask of its results and elements."""
    columns = columns // WIDTH * WIDTH  # as for rows
    across, down = tl.cdiv(columns, BLOCK_N), tl.cdiv(rows, BLOCK_M)
    pid = tl.program_id(0).to(tl.int64)
    matrix = pid // (across * down)
    offs_m = pid // across % down * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    offs_n = pid % across * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    offs_o = offs_m if BY_ROW else matrix * columns + offs_n
    offs = (matrix * rows + offs_m) * columns + offs_n
    return offs_m, offs_n, offs_o, offs, (offs_m < rows) & (offs_n < columns)


_BESIDE = {"ties": torch.float32, "max": torch.int64}
"""Operations with a second result, and its dtype."""


def _outputs(x, op, dtype):
    """Results [outer, inner] for x [outer, n, inner], and the second ones where the operation has them, else None."""
    shape = (x.shape[0], x.shape[2])
    beside = torch.empty(shape, dtype=_BESIDE[op], device=x.device) if op in _BESIDE else None
    return torch.empty(shape, dtype=dtype or x.dtype, device=x.device), beside


def _returned(out, beside):
    return out if beside is None else (out, beside)


def _scratch(x, op, counters, parts):
    """Memory for counters (two fp32 each) and parts, as ``_write_part`` lays them out."""
    count = 2 * counters + parts * (2 if op in _BESIDE else 1)
    return torch.empty(count, dtype=torch.float32, device=x.device)


def _vector(x):
    """Elements of 16 bytes."""
    return VECTOR_BYTES // x.element_size()


def _multiple(length, x):
    """The largest power of two, of at most 16 bytes, that divides a row's length."""
    return math.gcd(length, _vector(x))


def _splits(gpu, config, outputs, blocks, most):
    """Programs that share each of ``outputs`` (blocks of) results: as many as keep PER_SM on every SM."""
    return _largest(1, min(config["PER_SM"] * gpu.sms // outputs, blocks, most))


def _policy(x):
    """How the caches are to keep x, which is read once.

    A cache full of what kernels before wrote has to write it back before it takes in anything else.  Told that it may
    drop x first, it replaces x by x and leaves most of that alone: of 67 MB a mere read takes 24.0 us and not 27.2
    (H200, Triton 3.6).  Where x is several times the cache all of it is pushed out either way.
    """
    return "evict_first" if x.numel() * x.element_size() <= _CACHES * gpu_of(x.device).l2_bytes else ""


def _launch_rows(x, op, dtype=None, *, config):
    out, beside = _outputs(x, op, dtype)
    outer, n, _ = x.shape
    block_n = triton.next_power_of_2(n)
    block_m = _largest(1, 32 * config["num_warps"] * config["VECTORS"] * _vector(x) // block_n)
    launch(
        _rows_kernel,
        (triton.cdiv(outer, block_m),),
        x,
        out,
        out if beside is None else beside,
        outer,
        n,
        OP=op,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        WIDTH=_multiple(n, x),
        EVEN=outer % block_m == 0 and n == block_n,
        num_warps=config["num_warps"],
    )
    return _returned(out, beside)


def _launch_stream(x, op, dtype=None, *, config, once=True):
    out, beside = _outputs(x, op, dtype)
    outer, n, _ = x.shape
    width = _vector(x)
    lanes = 32 * config["num_warps"] * config["VECTORS"]
    splits = _splits(gpu_of(x.device), config, outer, triton.cdiv(n, lanes * width), _MOST_PARTS)
    scratch = out if splits == 1 else _scratch(x, op, outer, splits * outer)
    launch(
        _stream_kernel,
        (outer * splits,),
        x,
        out,
        out if beside is None else beside,
        scratch,
        outer,
        n,
        splits,
        OP=op,
        LANES=lanes,
        WIDTH=width,
        WHOLE=n % width == 0,
        SPLITS=triton.next_power_of_2(splits),
        ONCE=once,
        POLICY=_policy(x),
        num_warps=config["num_warps"],
    )
    if splits > 1 and not once:
        _launch_combine(scratch[2 * outer :], out, beside, op, n, splits)
    return _returned(out, beside)


def _launch_columns(x, op, dtype=None, *, config, once=True):
    out, beside = _outputs(x, op, dtype)
    outer, n, inner = x.shape
    block_c = config["BLOCK_C"]
    block_r = 32 * config["num_warps"] * config["VECTORS"] * _vector(x) // block_c
    blocks = triton.cdiv(inner, block_c)
    most = _PART_REGISTERS * 32 * config["num_warps"] // block_c
    splits = _splits(gpu_of(x.device), config, outer * blocks, triton.cdiv(n, block_r), most)
    scratch = out if splits == 1 else _scratch(x, op, outer * blocks, splits * outer * inner)
    launch(
        _columns_kernel,
        (outer * blocks * splits,),
        x,
        out,
        out if beside is None else beside,
        scratch,
        outer,
        n,
        inner,
        splits,
        OP=op,
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        WIDTH=_multiple(inner, x),
        EVEN=inner % block_c == 0,
        SPLITS=triton.next_power_of_2(splits),
        ONCE=once,
        POLICY=_policy(x),
        num_warps=config["num_warps"],
    )
    if splits > 1 and not once:
        _launch_combine(scratch[2 * outer * blocks :], out, beside, op, n, splits)
    return _returned(out, beside)


def _launch_combine(parts, out, beside, op, n, splits):
    """The second launch: results from their parts."""
    tall = triton.next_power_of_2(splits)
    wide = _largest(1, min(_COMBINED // tall, triton.next_power_of_2(out.numel())))
    launch(
        _combine_kernel,
        (triton.cdiv(out.numel(), wide),),
        parts,
        out,
        out if beside is None else beside,
        out.numel(),
        n,
        splits,
        OP=op,
        BLOCK_C=wide,
        SPLITS=tall,
        num_warps=4,
    )


def _launch_stream_twice(x, op, dtype=None, *, config):
    return _launch_stream(x, op, dtype, config=config, once=False)


def _launch_columns_twice(x, op, dtype=None, *, config):
    return _launch_columns(x, op, dtype, config=config, once=False)


def _launch_tiles(x, out, beside, dout, op, n, *, config):
    """Gradient of amax from x [outer, n, inner], of max from its indices alone (x is then not read, and may be None).

    ``out`` and ``dout`` are [outer, inner]; ``beside`` holds the ties or the indices.
    """
    outer, inner = dout.shape
    dx = torch.empty((outer, n, inner), dtype=dout.dtype, device=dout.device)
    by_row = inner == 1
    rows, columns = (outer, n) if by_row else (n, inner)
    block_n = min(config["BLOCK_N"], triton.next_power_of_2(columns))
    block_m = _largest(1, 32 * config["num_warps"] * config["VECTORS"] * _vector(dx) // block_n)
    block_m = min(block_m, triton.next_power_of_2(rows))
    matrices = 1 if by_row else outer
    inputs = (beside, dout) if op == "max" else (x, out, beside, dout)
    launch(
        _max_backward_kernel if op == "max" else _amax_backward_kernel,
        (matrices * triton.cdiv(rows, block_m) * triton.cdiv(columns, block_n),),
        *inputs,
        dx,
        rows,
        columns,
        BY_ROW=by_row,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        WIDTH=_multiple(columns, dx),
        num_warps=config["num_warps"],
    )
    return dx


def _launch_backward(op, dout, x=None, out=None, ties=None, indices=None, n=None, *, config):
    beside = indices if op == "max" else ties
    return _launch_tiles(x, out, beside, dout, op, x.shape[1] if n is None else n, config=config)


def _flat(x, begin, end):
    """x as [outer, n, inner], where n counts the axes from ``begin`` up to ``end``."""
    return x.view(math.prod(x.shape[:begin]), math.prod(x.shape[begin:end]), math.prod(x.shape[end:]))


def _shape(x, begin, end, keepdim):
    """The shape of what is left of x when the axes from ``begin`` up to ``end`` are reduced."""
    return (*x.shape[:begin], *((1,) * (end - begin) if keepdim else ()), *x.shape[end:])


def _case_of(dtype, outer, n, inner, op):
    return case(_NAMES[dtype], outer=outer, n=n, inner=inner, op=op)


def _run(x, op, begin, end, keepdim, dtype=None):
    shape, x = _shape(x, begin, end, keepdim), _flat(x, begin, end)
    variant, config = choose(DECLARATION, "forward", _case_of(x.dtype, *x.shape, op), x.device)
    results = variant.launch(x, op, dtype, config=config)
    return tuple(r.view(shape) for r in results) if isinstance(results, tuple) else results.view(shape)


def _run_sum(x, begin, end, keepdim, mean, widen):
    return _run(x, "mean" if mean else "sum", begin, end, keepdim, torch.float32 if widen else None)


def _fake_sum(x, begin, end, keepdim, mean, widen):
    return x.new_empty(_shape(x, begin, end, keepdim), dtype=torch.float32 if widen else x.dtype)


def _setup_sum(ctx, inputs, output):
    x, begin, end, keepdim, mean, _ = inputs
    ctx.shape, ctx.begin, ctx.end, ctx.keepdim, ctx.mean, ctx.dtype = x.shape, begin, end, keepdim, mean, x.dtype


def _pull_back_sum(ctx, dout):
    if ctx.mean:
        dout = dout / math.prod(ctx.shape[ctx.begin : ctx.end])
    kept = (*ctx.shape[: ctx.begin], *(1,) * (ctx.end - ctx.begin), *ctx.shape[ctx.end :])
    return dout.to(ctx.dtype).reshape(kept).expand(ctx.shape), None, None, None, None, None


def _fake_amax(x, begin, end, keepdim):
    return x.new_empty(_shape(x, begin, end, keepdim))


def _fake_ties(x, begin, end, keepdim):
    shape = _shape(x, begin, end, keepdim)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.float32)


def _fake_max(x, begin, end, keepdim):
    shape = _shape(x, begin, end, keepdim)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


def _setup_ties(ctx, inputs, output):
    x, begin, end, _ = inputs
    ctx.save_for_backward(x, *output)
    ctx.begin, ctx.end = begin, end
    ctx.set_materialize_grads(False)


def _setup_max(ctx, inputs, output):
    x, begin, end, _ = inputs
    ctx.save_for_backward(output[1])
    ctx.shape, ctx.begin, ctx.end = x.shape, begin, end
    ctx.set_materialize_grads(False)


def _pull_back_ties(ctx, dout, _):
    if dout is None:
        return None, None, None, None
    x, out, ties = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        kept = _shape(x, ctx.begin, ctx.end, True)
        share = dout.reshape(kept).float() / ties.reshape(kept)
        return ((x == out.reshape(kept)) * share).to(x.dtype), None, None, None
    return _amax_backward(x, out, ties, dout.contiguous(), ctx.begin, ctx.end), None, None, None


def _pull_back_max(ctx, dout, _):
    if dout is None:
        return None, None, None, None
    (indices,) = ctx.saved_tensors
    shape, begin, end = ctx.shape, ctx.begin, ctx.end
    outer, n, inner = math.prod(shape[:begin]), math.prod(shape[begin:end]), math.prod(shape[end:])
    if torch.is_grad_enabled():
        at, dout = indices.view(outer, 1, inner), dout.reshape(outer, 1, inner)
        return dout.new_zeros((outer, n, inner)).scatter(1, at, dout).view(shape), None, None, None
    dx = _max_backward(indices, dout.contiguous(), outer, n, inner)
    return dx.view(shape), None, None, None


def _run_amax_backward(x, out, ties, dout, begin, end):
    shape, x = x.shape, _flat(x, begin, end)
    outer, n, inner = x.shape
    variant, config = choose(DECLARATION, "backward", _case_of(x.dtype, outer, n, inner, "amax"), x.device)
    out, ties, dout = (t.view(outer, inner) for t in (out, ties, dout))
    return variant.launch(op="amax", x=x, out=out, ties=ties, dout=dout, config=config).view(shape)


def _run_max_backward(indices, dout, outer, n, inner):
    variant, config = choose(DECLARATION, "backward", _case_of(dout.dtype, outer, n, inner, "max"), dout.device)
    indices, dout = indices.view(outer, inner), dout.view(outer, inner)
    return variant.launch(op="max", indices=indices, dout=dout, n=n, config=config)


_sum = Differentiable(
    CustomOperator(
        "reduction_sum",
        "(Tensor x, int begin, int end, bool keepdim, bool mean, bool widen) -> Tensor",
        run=_run_sum,
        fake=_fake_sum,
    ),
    setup_context=_setup_sum,
    backward=_pull_back_sum,
)
_amax = CustomOperator(
    "reduction_amax",
    "(Tensor x, int begin, int end, bool keepdim) -> Tensor",
    run=lambda x, begin, end, keepdim: _run(x, "amax", begin, end, keepdim),
    fake=_fake_amax,
)
_amax_with_ties = Differentiable(
    CustomOperator(
        "reduction_amax_with_ties",
        "(Tensor x, int begin, int end, bool keepdim) -> (Tensor, Tensor)",
        run=lambda x, begin, end, keepdim: _run(x, "ties", begin, end, keepdim),
        fake=_fake_ties,
    ),
    setup_context=_setup_ties,
    backward=_pull_back_ties,
)
_max = Differentiable(
    CustomOperator(
        "reduction_max",
        "(Tensor x, int begin, int end, bool keepdim) -> (Tensor, Tensor)",
        run=lambda x, begin, end, keepdim: _run(x, "max", begin, end, keepdim),
        fake=_fake_max,
    ),
    setup_context=_setup_max,
    backward=_pull_back_max,
)
_amax_backward = CustomOperator(
    "reduction_amax_backward",
    "(Tensor x, Tensor out, Tensor ties, Tensor dout, int begin, int end) -> Tensor",
    run=_run_amax_backward,
    fake=lambda x, out, ties, dout, begin, end: torch.empty_like(x),
)
_max_backward = CustomOperator(
    "reduction_max_backward",
    "(Tensor indices, Tensor dout, SymInt outer, SymInt n, SymInt inner) -> Tensor",
    run=_run_max_backward,
    fake=lambda indices, dout, outer, n, inner: dout.new_empty((outer, n, inner)),
)


def sum(input: torch.Tensor, dim=None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.sum(input, dim, keepdim, dtype=dtype)`` in fp32, fp16 or bf16, over one, several or all axes.

    ``dim`` is an int or several; None and none of them are all axes.  With ``dtype`` the input is cast first; 16 bits
    to fp32 without a copy.  A contiguous tensor in another order of its axes is read as it lies; other layouts, and
    several axes that are not neighbours in memory, are copied first.  Raises TypeError for another dtype; TypeError,
    IndexError and RuntimeError for a ``dim`` as torch does.
    """
    return _summed(input, dim, keepdim, dtype, False)


def mean(input: torch.Tensor, dim=None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.mean(input, dim, keepdim, dtype=dtype)``; see :func:`sum`."""
    return _summed(input, dim, keepdim, dtype, True)


def amax(input: torch.Tensor, dim=(), keepdim: bool = False) -> torch.Tensor:
    """``torch.amax(input, dim, keepdim)`` in fp32, fp16 or bf16: ties share the gradient evenly.  See :func:`sum`.

    Without gradients nothing but the maxima is written; else forward also writes how many ties each has.
    """
    _check(input, "amax")
    if not input.numel():
        return torch.amax(input, dim, keepdim)
    wanted = derivative_wanted(input)
    x, begin, end, restore = _laid_out("amax", input, dim, keepdim)
    out = _amax_with_ties(x, begin, end, keepdim)[0] if wanted else _amax(x, begin, end, keepdim)
    return out if restore is None else restore(out)


def max(input: torch.Tensor, dim: int | None = None, keepdim: bool = False):
    """``torch.max(input)`` over all elements, or ``torch.max(input, dim, keepdim)``: (values, indices) of the first
    maximum along one axis, a NaN before any number.

    The gradient over all elements is that of :func:`amax`: NaN everywhere where the maximum is NaN.  Raises TypeError
    for a ``keepdim`` without a ``dim``, as torch does, and NotImplementedError for the maximum of two tensors and for
    indices along an axis of 2^31 elements or more.
    """
    if isinstance(dim, torch.Tensor):
        raise NotImplementedError("max takes an int as dim: the larger elements of two tensors are torch.maximum's")
    _check(input, "max")
    if dim is None:
        if keepdim:
            raise TypeError("max keeps a dim that is named: name one, or use amax(input, keepdim=True)")
        return amax(input) if input.numel() else torch.max(input)
    dim = axis_of("max", dim, input.dim())
    if not input.numel():
        return torch.max(input, dim, keepdim)
    x, begin, end, restore = _laid_out("max", input, dim, keepdim)
    out, indices = _max(x, begin, end, keepdim)
    if restore is not None:
        out, indices = restore(out), restore(indices)
    return torch.return_types.max((out, indices))


def _summed(input, dim, keepdim, dtype, average):
    x, name = input, "mean" if average else "sum"
    if autocasting() and dtype is None and not average and autocast_rule("sum.dim_IntList", x.device) == FP32:
        dtype = torch.float32
    if dtype is not None and dtype != x.dtype and (dtype != torch.float32 or x.dtype not in _NAMES):
        x = x.to(dtype)
    _check(x, name)
    if not x.numel():
        return (torch.mean if average else torch.sum)(input, dim, keepdim, dtype=dtype)
    widen = dtype is torch.float32 and x.dtype is not dtype
    x, begin, end, restore = _laid_out(name, x, dim, keepdim)
    out = _sum(x, begin, end, keepdim, average, widen)
    return out if restore is None else restore(out)


def _check(x, name):
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} takes a tensor: {x!r}")
    if x.dtype not in _NAMES:
        names = ", ".join(_DTYPES)
        raise TypeError(f"{name} takes {names}: {x.dtype}; cast the input, or name one as dtype= where {name} has it")


_MOST_AXES = 64
"""torch's, where a dim is named."""


def _laid_out(name, x, dim, keepdim):
    """x contiguous, the range of its axes to reduce, and how to put the result's axes in order again, None for as is.

    Raises TypeError for what is no axis, IndexError for one that is not there, RuntimeError for one named twice and for
    one of more than 64.
    """
    rank = x.dim()
    if type(dim) is int and 0 < rank <= _MOST_AXES and x.is_contiguous():  # what is asked for most, and first
        begin = axis_of(name, dim, rank)
        return x, begin, begin + 1, None
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        if x.is_contiguous():
            return x, 0, rank, None
        axes = list(range(rank))
    else:
        if rank > _MOST_AXES:
            raise RuntimeError(f"{name} takes a dim of inputs of up to {_MOST_AXES} axes, as torch does: {rank}")
        axes = [axis_of(name, d, rank) for d in (dim if isinstance(dim, (list, tuple)) else (dim,))]
        if len(axes) == 1 and rank and x.is_contiguous():
            return x, axes[0], axes[0] + 1, None
        if len(set(axes)) < len(axes):
            raise RuntimeError(f"{name}: dim {tuple(dim)} names an axis more than once")
        axes = axes if rank else []
    # The axes as they lie in memory, where that is without gaps; then those to reduce have to be neighbours.
    order = sorted(range(rank), key=lambda axis: -x.stride(axis))
    places = sorted(order.index(axis) for axis in axes)
    if (places and places[-1] - places[0] >= len(places)) or not x.permute(order).is_contiguous():
        order = [axis for axis in range(rank) if axis not in axes] + sorted(axes)
        places = list(range(rank - len(axes), rank))
    begin = places[0] if places else 0
    # Places of the result's axes among those of x.permute(order).
    left = order if keepdim else [axis for axis in order if axis not in axes]
    back = [left.index(axis) for axis in sorted(left)]
    restore = None if back == sorted(back) else lambda out: out.permute(back)
    return x.permute(order).contiguous(), begin, begin + len(places), restore


_FUNCTIONS = {"sum": sum, "mean": mean, "amax": amax, "ties": amax, "max": max}


def _reduce(x, op):
    """The public function of an operation on x [outer, n, inner]."""
    return _FUNCTIONS[op](x, 1)


_DTYPES = ("fp32", "fp16", "bf16")
_NAMES = {torch_dtype(name): name for name in _DTYPES}


def _reference(x, op):
    if op == "ties":
        out = x.amax(1)
        return out, (x == out[:, None]).sum(1).float()
    result = getattr(x, op)(1)
    return tuple(result) if op == "max" else result


def _backward_reference(x, op, dout, out=None, ties=None, indices=None):
    if op == "max":
        return torch.zeros_like(x).scatter(1, indices[:, None], dout[:, None])
    if op in ("sum", "mean"):
        return (dout / (x.shape[1] if op == "mean" else 1))[:, None].expand(x.shape)
    return (x == out[:, None]) * (dout / ties)[:, None]


def _torch_forward(x, op, **_):
    """What autograd differentiates: the values alone."""
    result = getattr(x, "amax" if op == "ties" else op)(1)
    return result[0] if op == "max" else result


def _inputs(problem: Case, device, generator):
    shape = (problem["outer"], problem["n"], problem["inner"])
    x = torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)
    if problem["op"] not in ("sum", "mean"):
        x = (4 * x).round() / 4  # several elements attain the maximum, whatever the dtype
    return {"x": x, "op": problem["op"]}


def _backward_inputs(problem: Case, device, generator):
    inputs = _inputs(problem, device, generator)
    x, op = inputs["x"], inputs["op"]
    inputs["dout"] = torch.randn((x.shape[0], x.shape[2]), dtype=x.dtype, device=device, generator=generator)
    if op == "max":
        inputs["indices"] = x.max(1).indices
    elif op not in ("sum", "mean"):
        inputs["out"], inputs["ties"] = _reference(x, "ties")
    return inputs


def _bytes(problem: Case):
    """x, out, and indices or ties."""
    size, op, outputs = element_size(problem.dtype), problem["op"], problem["outer"] * problem["inner"]
    beside = {op: outputs * _BESIDE[op].itemsize} if op in _BESIDE else {}
    return {"x": outputs * problem["n"] * size, "out": outputs * size, **beside}


def _backward_bytes(problem: Case):
    """Of sum and mean nothing: what has strides of 0 is not written."""
    size, op, outputs = element_size(problem.dtype), problem["op"], problem["outer"] * problem["inner"]
    if op in ("sum", "mean"):
        return {"dx": 0}
    needed = {"dx": outputs * problem["n"] * size, "dout": outputs * size}
    if op == "max":
        return {**needed, "indices": 8 * outputs}
    return {**needed, "x": outputs * problem["n"] * size, "out": outputs * size, "ties": 4 * outputs}


def _cases(gpu: GPU) -> list[Case]:
    shapes = (
        # All elements: at 2^20 launch and combination are the cost, at 2^24 a third of it.
        ("fp32", "sum", (1, 2**20, 1), (1, 2**24, 1), (1, 2**28, 1)),
        ("bf16", "sum", (1, 2**30, 1)),
        # Last axis: launch-bound, a long vocabulary of odd length, few rows that are shared, many short ones.
        ("bf16", "mean", (128, 1024, 1)),
        ("bf16", "sum", (4096, 50257, 1), (16, 2**22, 1), (2**20, 64, 1)),
        # A middle axis; the first, as for a bias's gradient; so few columns that rows are shared.
        ("bf16", "mean", (16, 2048, 4096)),
        ("bf16", "sum", (1, 8192, 5120), (1, 2**18, 128)),
        ("fp16", "amax", (8192, 4096, 1)),
        ("bf16", "amax", (1, 16384, 5120)),
        ("bf16", "max", (4096, 32000, 1), (64, 256, 16384)),
    )
    largest = gpu.memory_bytes // 8 // 2  # x and its gradient in an eighth of the memory
    return [
        case(dtype, outer=outer, n=n, inner=inner, op=op)
        for dtype, op, *sizes in shapes
        for outer, n, inner in sizes
        if outer * n * inner * element_size(dtype) <= largest
    ]


_EDGE_CASES = tuple(
    case(dtype, reason, outer=outer, n=n, inner=inner, op=op)
    for dtype in _DTYPES
    for outer, n, inner, ops, reason in (
        (1, 1, 1, ("mean", "max"), "one element"),
        (5, 1, 3, ("amax",), "nothing to reduce: each element is its own maximum"),
        (
            1,
            20_003,
            1,
            ("sum", "ties", "max"),
            "all of an odd number of elements: a tail, and several programs for one result",
        ),
        (1, 32_768, 1, ("amax",), "all elements in whole blocks: no tail"),
        (21, 129, 1, ("mean", "max"), "odd rows, one element past a power of two"),
        (5, 45_001, 1, ("sum", "max"), "few rows that each begin elsewhere in a lane of 16 bytes: shared, with a tail"),
        (16, 512, 1, ("mean", "amax"), "whole tiles of rows"),
        (40, 3, 1, ("sum", "max"), "rows of fewer elements than a vector"),
        (4, 33, 65, ("sum", "mean", "ties", "max"), "odd everywhere: no row but the first starts on 16 bytes"),
        (1, 9001, 7, ("sum", "max"), "fewer columns than any block, shared by programs"),
        (3, 128, 64, ("sum", "ties"), "whole blocks of rows and columns"),
        (1, 70, 1111, ("mean", "amax"), "many columns: a program for each block of them"),
    )
    for op in ops
)

_HUGE_CASES = (
    case("bf16", "all of more than 2^31 elements, and a tail", outer=1, n=2**31 + 7, inner=1, op="mean"),
    case("bf16", "row offsets beyond 2^31", outer=2**18 + 1, n=8192, inner=1, op="amax"),
    case("bf16", "column offsets beyond 2^31", outer=1, n=2**18 + 1, inner=8192, op="amax"),
)

_CACHES = 4
"""Up to so many times the L2 x is marked to leave it first."""

_PART_REGISTERS = 64
"""Parts that each thread holds while they are combined."""

_MOST_PARTS = 4096
"""Programs that share a row: more than PER_SM on any GPU."""

_COMBINED = 4096
"""Parts that a program of the second launch holds."""

_ROWS_SPACE = {"VECTORS": (1, 2, 4, 8), "num_warps": (1, 2, 4, 8, 16)}
_STREAM_SPACE = {"VECTORS": (2, 4, 8), "num_warps": (4, 8, 16), "PER_SM": (1, 2, 4, 8)}
_COLUMNS_SPACE = {"VECTORS": (2, 4, 8), "BLOCK_C": (16, 64, 128, 256, 512), "num_warps": (4, 8), "PER_SM": (1, 2, 4, 8)}
_TILES_SPACE = {"VECTORS": (1, 2, 4), "BLOCK_N": (16, 64, 256, 1024, 4096), "num_warps": (4, 8)}
"""VECTORS are of 16 bytes, each thread's; PER_SM is how many programs each SM gets where results are shared."""

_UNDER_WAY = (2**15, 3 * 2**15)
"""Bytes that an SM's programs read at once: 32 KiB is what a microsecond's latency needs at an H200's 4.4 TB/s, and
beyond three times that there are only fewer warps to compute."""


def _vectors(config, problem: Case) -> int:
    """Elements of one program's block, VECTORS for each thread."""
    return config["VECTORS"] * 32 * config["num_warps"] * VECTOR_BYTES // element_size(problem.dtype)


def _spills(config, problem: Case) -> str:
    """An accumulator for each element, with ties or an index beside it, and the vectors as they are loaded."""
    live = 2 if problem["op"] in _BESIDE else 1
    elements = config["VECTORS"] * VECTOR_BYTES // element_size(problem.dtype)
    needed = elements * live + 4 * config["VECTORS"] + OTHER_REGISTERS
    available = min(THREAD_REGISTERS, REGISTERS // (32 * config["num_warps"]))
    return f"{needed} registers a thread, of {available}: it would spill" if needed > available else ""


def _of_axis(last: bool, problem: Case) -> str:
    if (problem["inner"] == 1) == last:
        return ""
    return "another axis than the last is reduced" if last else "the last axis is reduced"


def _handles_rows(problem: Case, gpu: GPU) -> str:
    longest = _longest_row(problem)
    too_long = f"rows of {problem['n']} elements, over {longest}" if problem["n"] > longest else ""
    return _of_axis(True, problem) or too_long


def _longest_row(problem: Case) -> int:
    """A quarter of an SM's registers: with more too few programs are there to read while one combines."""
    return REGISTERS // 4 // (2 if problem["op"] in _BESIDE else 1)


def _handles_stream(problem: Case, gpu: GPU) -> str:
    return _of_axis(True, problem) or _too_many_indices(problem)


def _handles_columns(problem: Case, gpu: GPU) -> str:
    return _of_axis(False, problem) or _too_many_indices(problem)


def _too_many_indices(problem: Case) -> str:
    many = problem["op"] == "max" and problem["n"] >= 2**31
    return "indices of 2^31 and more: they are 32 bits wide until they are written" if many else ""


def _shares(outputs: int, per_sm: int, gpu: GPU) -> bool:
    """Whether more than one program gets a part of each of ``outputs``."""
    return 2 * outputs <= per_sm * gpu.sms


def _handles_stream_twice(problem: Case, gpu: GPU) -> str:
    shared = _shares(problem["outer"], _STREAM_SPACE["PER_SM"][-1], gpu)
    return _handles_stream(problem, gpu) or ("" if shared else "a program for every row: nothing to combine")


def _handles_columns_twice(problem: Case, gpu: GPU) -> str:
    fewest = problem["outer"] * triton.cdiv(problem["inner"], _COLUMNS_SPACE["BLOCK_C"][-1])
    shared = _shares(fewest, _COLUMNS_SPACE["PER_SM"][-1], gpu)
    return _handles_columns(problem, gpu) or ("" if shared else "a program for every column: nothing to combine")


def _fits_rows(config, problem: Case, gpu: GPU) -> str:
    block, longest = _vectors(config, problem), triton.next_power_of_2(problem["n"])
    if block < longest:
        return "a row longer than a program's registers"
    if config["num_warps"] * config["VECTORS"] > 1 and block >= 2 * longest * triton.next_power_of_2(problem["outer"]):
        return "a tile with room for twice the rows there are"
    return _spills(config, problem)


def _under_way(config, outputs: int, gpu: GPU) -> str:
    """Why PER_SM programs of this kind read too little or too much at once, where ``outputs`` are to be shared."""
    if not _shares(outputs, _STREAM_SPACE["PER_SM"][-1], gpu):
        return "" if config["PER_SM"] == 1 else "a program for every output: PER_SM changes nothing"
    if config["num_warps"] * config["PER_SM"] > gpu.warps_per_sm:
        return "more warps than an SM holds"
    least, most = _UNDER_WAY
    read = config["VECTORS"] * config["num_warps"] * 32 * VECTOR_BYTES * config["PER_SM"]
    return "" if least <= read <= most else f"{read} bytes of an SM under way: {least} to {most} keep memory busy"


def _fits_stream(config, problem: Case, gpu: GPU) -> str:
    smallest = config["VECTORS"] == _STREAM_SPACE["VECTORS"][0] and config["num_warps"] == _STREAM_SPACE["num_warps"][0]
    if not smallest and _vectors(config, problem) > triton.next_power_of_2(problem["n"]):
        return "a block longer than the row"
    return _spills(config, problem) or _under_way(config, problem["outer"], gpu)


def _fits_columns(config, problem: Case, gpu: GPU) -> str:
    widths = _COLUMNS_SPACE["BLOCK_C"]
    widest = next((width for width in widths if width >= problem["inner"]), widths[-1])
    if config["BLOCK_C"] > widest:
        return "a block wider than the rows"
    if config["BLOCK_C"] < min(widths[1], widest):
        return "rows cut into less than 128 bytes of 16-bit elements"
    smallest = config["VECTORS"] == _COLUMNS_SPACE["VECTORS"][0] and config["num_warps"] == 4
    if not smallest and _vectors(config, problem) > config["BLOCK_C"] * triton.next_power_of_2(problem["n"]):
        return "a block of more rows than there are"
    outputs = problem["outer"] * triton.cdiv(problem["inner"], config["BLOCK_C"])
    return _spills(config, problem) or _under_way(config, outputs, gpu)


def _fits_tiles(config, problem: Case, gpu: GPU) -> str:
    columns = problem["n"] if problem["inner"] == 1 else problem["inner"]
    if config["BLOCK_N"] > _largest(_TILES_SPACE["BLOCK_N"][0], triton.next_power_of_2(columns)):
        return "a tile wider than the rows"
    if config["BLOCK_N"] > _vectors(config, problem):
        return "a tile of less than a row"
    if 4 * config["BLOCK_N"] < min(columns, 1024):
        return "rows cut into short pieces"
    return ""


def _first(space, fits, problem: Case, gpu: GPU, preferred) -> dict:
    """Of ``preferred`` and then all of ``space`` the first config that fits."""
    names = list(space)
    for config in preferred:
        if all(config[name] in space[name] for name in names) and not fits(config, problem, gpu):
            return config
    return next(Variant("", None, space, None, fits=fits).configs(problem, gpu))


def _rows_default(problem: Case, gpu: GPU) -> dict:
    """Two vectors a thread and the fewest warps, from four on, that hold a row."""
    sizes = ((2, 4), (2, 8), (2, 16), (4, 16), (8, 16), (1, 4), (1, 2), (1, 1))
    return _first(_ROWS_SPACE, _fits_rows, problem, gpu, [{"VECTORS": v, "num_warps": w} for v, w in sizes])


def _stream_default(problem: Case, gpu: GPU) -> dict:
    """64 KiB of an SM under way in four programs of eight warps; of short rows fewer warps have more programs."""
    sizes = ((4, 8, 4), (2, 8, 4), (2, 8, 8), (2, 4, 8), (4, 8, 1), (2, 8, 1), (2, 4, 1))
    preferred = [{"VECTORS": v, "num_warps": w, "PER_SM": p} for v, w, p in sizes]
    return _first(_STREAM_SPACE, _fits_stream, problem, gpu, preferred)


def _columns_default(problem: Case, gpu: GPU) -> dict:
    """256 bytes of 16-bit elements of a row, and no more programs on an SM than its registers hold at once."""
    sizes = ((4, 8, 2), (4, 8, 4), (4, 4, 8), (2, 8, 4), (2, 4, 8), (4, 8, 1), (4, 4, 1), (2, 4, 1))
    preferred = [{"VECTORS": v, "BLOCK_C": c, "num_warps": w, "PER_SM": p} for c in (128, 64, 16) for v, w, p in sizes]
    return _first(_COLUMNS_SPACE, _fits_columns, problem, gpu, preferred)


def _tiles_default(problem: Case, gpu: GPU) -> dict:
    preferred = [{"VECTORS": 2, "BLOCK_N": n, "num_warps": 4} for n in (1024, 256, 64, 16)]
    return _first(_TILES_SPACE, _fits_tiles, problem, gpu, preferred)


def _stream_variant(name: str, summary: str, launcher, handles) -> Variant:
    return Variant(name, launcher, _STREAM_SPACE, _stream_default, summary, _fits_stream, handles)


def _columns_variant(name: str, summary: str, launcher, handles, space=_COLUMNS_SPACE) -> Variant:
    return Variant(name, launcher, space, _columns_default, summary, _fits_columns, handles)


DECLARATION = Declaration(
    name="reduction",
    family="reductions",
    summary="sum, mean, amax, max over one axis or over all elements",
    function=_reduce,
    call=lambda function, inputs: function(inputs["x"], inputs["op"]),
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("x",),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("out", "beside"),
        variants=(
            Variant(
                name="rows",
                summary="whole rows in registers, one tile of rows a program",
                launch=_launch_rows,
                space=_ROWS_SPACE,
                default=_rows_default,
                fits=_fits_rows,
                handles=_handles_rows,
            ),
            _stream_variant("stream", "rows shared by programs, one launch", _launch_stream, _handles_stream),
            _stream_variant(
                "stream_twice", "as stream, combined in a second launch", _launch_stream_twice, _handles_stream_twice
            ),
            _columns_variant("columns", "columns shared by programs, one launch", _launch_columns, _handles_columns),
            _columns_variant(
                "columns_twice",
                "as columns, combined in a second launch",
                _launch_columns_twice,
                _handles_columns_twice,
                {**_COLUMNS_SPACE, "BLOCK_C": (16, 64, 128)},
            ),
        ),
        peers={"torch": eager(_reference), "torch.compile": compiled(_reference), "cuda": cuda("rows")},
        bytes=_bytes,
        flops=lambda c: {c["op"]: c["outer"] * c["n"] * c["inner"]},
        reduction=lambda c: c["n"],
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_backward_reference,
        outputs=("dx",),
        variants=(
            Variant(
                name="tiles",
                summary="tiles of x and dx, with the results of their rows or columns",
                launch=_launch_backward,
                space=_TILES_SPACE,
                default=_tiles_default,
                fits=_fits_tiles,
                handles=lambda c, gpu: "the gradient is a view of dout" if c["op"] in ("sum", "mean") else "",
            ),
        ),
        peers={
            "torch": gradients(_torch_forward, wrt=("x",), cotangent="dout"),
            "torch.compile": compiled_gradients(_torch_forward, wrt=("x",), cotangent="dout"),
        },
        bytes=_backward_bytes,
        flops=lambda c: {"x = out": 0 if c["op"] in ("sum", "mean") else c["outer"] * c["n"] * c["inner"]},
    ),
)
