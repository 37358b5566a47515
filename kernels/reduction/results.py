"""Results of a reduction: their memory, and what programs do that share one: parts, counters, the second launch."""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch

from .folding import NO_INDEX, collapse, identity_of, write_results

TAG = tl.constexpr(0x7FF8A71A5C3D)
"""The upper 48 bits of a counter in use.

Memory comes uninitialised, and a launch that zeroes it would be a second one.  A word that does not hold the tag is no
counter yet.  With what follows it the tag is a NaN with a payload, of fp64, fp32 and bf16 alike, which no arithmetic
leaves behind, and the last program takes it away.  So a counter needs no memory that outlives the call: calls on
several streams and in CUDA graphs have each their own, as they have their results."""


@triton.jit
def write_part(part_ptr, offs, value, beside, parts, mask, OP: tl.constexpr):
    """Store partial results among ``parts`` of them, and behind these what stands beside them, as bits of fp32."""
    tl.store(part_ptr + offs, value, mask=mask)
    if OP == "ties" or OP == "max":
        tl.store(part_ptr + parts + offs, beside.to(tl.float32, bitcast=True), mask=mask)


@triton.jit
def read_parts(part_ptr, offs_s, offs, splits, outputs, mask, OP: tl.constexpr):
    """Of the results at ``offs`` [1, C] the parts ``offs_s`` [S, 1], as ``write_part`` stored them.

    Read from L2, where other programs wrote them: what L1 holds may be older.
    """
    valid = (offs_s < splits) & mask
    place = part_ptr + offs_s * outputs + offs
    acc = tl.load(place, mask=valid, other=identity_of(OP), cache_modifier=".cg")
    beside = acc
    if OP == "ties":
        beside = tl.load(place + splits * outputs, mask=valid, other=0.0, cache_modifier=".cg")
    if OP == "max":
        bits = tl.load(place + splits * outputs, mask=valid, other=0.0, cache_modifier=".cg")
        beside = tl.where(valid, bits.to(tl.int32, bitcast=True), NO_INDEX)
    return acc, beside


@triton.jit
def combine(part_ptr, offs, splits, outputs, mask, SPLITS: tl.constexpr, OP: tl.constexpr):
    """The results at ``offs`` [1, C] from all their parts, in the order of the splits."""
    offs_s = tl.arange(0, SPLITS)[:, None]
    acc, beside = read_parts(part_ptr, offs_s, offs, splits, outputs, mask, OP)
    return collapse(acc, beside, 0, OP)


@triton.jit
def open_counter(counter_ptr):
    """Make the word a counter at 0, unless another program did: whatever it held was no tag."""
    fresh = tl.full([], TAG << 16, tl.int64)
    held = tl.atomic_cas(counter_ptr, tl.full([], 0, tl.int64), fresh, sem="relaxed")
    while (held != 0) & ((held >> 16) != TAG):
        seen = tl.atomic_cas(counter_ptr, held, fresh, sem="relaxed")
        held = tl.where(seen == held, fresh, seen)


@triton.jit
def is_last(counter_ptr, splits):
    """Whether all other programs that share the counter have been here; what they stored before is then visible."""
    tl.debug_barrier()  # the one thread that counts releases what every thread of the program stored
    ticket = tl.atomic_add(counter_ptr, tl.full([], 1, tl.int64), sem="acq_rel")
    return (ticket & 0xFFFF) == splits - 1


@triton.jit
def close_counter(counter_ptr):
    """Take the tag away, so that nobody who is given this memory next finds a counter in use."""
    tl.store(counter_ptr, tl.full([], 0, tl.int64))


@triton.jit
def write_shared(out_ptr, beside_ptr, part_ptr, counter_ptr, offs, acc, beside, outputs, split, splits, n, mask,
                 SPLITS: tl.constexpr, OP: tl.constexpr, ONCE: tl.constexpr = True):  # fmt: skip
    """Write the results at ``offs`` [C], of ``outputs`` in all, that ``splits`` programs share.

    A program alone writes them.  Each of several leaves its part, and the last to be done combines them; without
    ONCE a second launch does.
    """
    if SPLITS == 1:
        write_results(out_ptr, beside_ptr, offs, acc, beside, n, mask, OP)
    else:
        write_part(part_ptr, split * outputs + offs, acc, beside, splits * outputs, mask, OP)
        if ONCE:
            last = is_last(counter_ptr, splits)
            if last:
                whole, with_it = combine(part_ptr, offs[None, :], splits, outputs, mask[None, :], SPLITS, OP)
                write_results(out_ptr, beside_ptr, offs, whole, with_it, n, mask, OP)
                close_counter(counter_ptr)


BESIDE = {"ties": torch.float32, "max": torch.int64}
"""Operations with a second result, and its dtype."""


def results_like(x, op, dtype):
    """Results [outer, inner] for x [outer, n, inner], and the second ones where the operation has them, else None."""
    shape = (x.shape[0], x.shape[2])
    beside = torch.empty(shape, dtype=BESIDE[op], device=x.device) if op in BESIDE else None
    return torch.empty(shape, dtype=dtype or x.dtype, device=x.device), beside


def returned(out, beside):
    return out if beside is None else (out, beside)


def scratch_for(x, op, counters, parts):
    """Memory for counters (two fp32 each) and parts, as ``write_part`` lays them out."""
    count = 2 * counters + parts * (2 if op in BESIDE else 1)
    return torch.empty(count, dtype=torch.float32, device=x.device)


def vector_of(x):
    """Elements of 16 bytes."""
    return VECTOR_BYTES // x.element_size()


def multiple_of(length, x):
    """The largest power of two, of at most 16 bytes, that divides a row's length."""
    return math.gcd(length, vector_of(x))


MOST_PARTS = 4096
"""Programs that share a row: more than PER_SM on any GPU."""

PART_REGISTERS = 64
"""Parts that each thread holds while they are combined."""


def splits_of(gpu, config, outputs, blocks, most):
    """Programs that share each of ``outputs`` (blocks of) results: as many as keep PER_SM on every SM."""
    return max(1, min(config["PER_SM"] * gpu.sms // outputs, blocks, most))


CACHES = 4
"""Up to so many times the L2 x is marked to leave it first."""


def cache_policy(x):
    """How the caches are to keep x, which is read once.

    A cache full of what kernels before wrote has to write it back before it takes in anything else.  Told that it may
    drop x first, it replaces x by x and leaves most of that alone: of 67 MB a mere read takes 24.0 us and not 27.2
    (H200, Triton 3.6).  Where x is several times the cache all of it is pushed out either way.
    """
    return "evict_first" if x.numel() * x.element_size() <= CACHES * gpu_of(x.device).l2_bytes else ""


@triton.jit
def _combine_kernel(part_ptr, out_ptr, beside_ptr, outputs, n, splits, OP: tl.constexpr, BLOCK_C: tl.constexpr,
                    SPLITS: tl.constexpr):  # fmt: skip
    """One program owns BLOCK_C outputs, of which each has ``splits`` parts."""
    offs = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = offs < outputs
    acc, beside = combine(part_ptr, offs[None, :], splits, outputs, mask[None, :], SPLITS, OP)
    write_results(out_ptr, beside_ptr, offs, acc, beside, n, mask, OP)


_COMBINED = 4096
"""Parts that a program of the second launch holds."""


def launch_combine(parts, out, beside, op, n, splits):
    """The second launch: results from their parts."""
    tall = triton.next_power_of_2(splits)
    wide = max(1, min(_COMBINED // tall, triton.next_power_of_2(out.numel())))
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
