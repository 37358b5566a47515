"""Who adds to which block of dQ, and when, in the backward pass for Hopper.

Gradients are the same bits at every run, for the order of the additions is fixed: each block of queries counts them,
and a writer waits for its number (:func:`rank_of`).  Nobody waits long: programs go through the queries in such an
order that no two need the same ones at the same time, and the number is the place in time.  So programs wait for one
another, and all run at once (a cooperative launch).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin

ROWS = 64
"""Queries of a block."""

KEYS = 64
"""Keys of a group of warps: what one wgmma multiplies.  A program's block of keys is that of both groups."""

STAGES = gl.constexpr(2)


@builtin
def add_to_global(desc, coord, smem, _semantic=None):
    """Begin to add a block in shared memory to one in memory: ``tma.async_copy_shared_to_global`` with a sum."""
    from triton._C.libtriton import ir

    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, smem.handle)


@gluon.jit
def wait_for_turn(turn_ptr, rank):
    """Wait until ``rank`` blocks of keys have added their dQ, and see what they wrote.

    The fence is of global memory alone, here and in :func:`pass_turn`: else a barrier of the whole GPU comes with it.
    """
    gl.inline_asm_elementwise(
        """
        {
        .reg .pred waits;
        .reg .b32 found;
        again:
        ld.acquire.gpu.global.b32 found, [$1];
        setp.ne.s32 waits, found, $2;
        @waits bra again;
        fence.proxy.async.global;
        mov.b32 $0, found;
        }
        """,
        "=r,l,r", [turn_ptr, rank], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def pass_turn(turn_ptr, rank):
    """Wait until what TMA adds is in memory, and say so."""
    gl.inline_asm_elementwise(
        """
        {
        .reg .b32 next;
        cp.async.bulk.wait_group 0;
        bar.warp.sync 0xffffffff;
        fence.proxy.async.global;
        add.s32 next, $2, 1;
        st.release.gpu.global.b32 [$1], next;
        mov.b32 $0, next;
        }
        """,
        "=r,l,r", [turn_ptr, rank], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def members_of(head, sizes):
    """(the first head of queries, of all batches, how many) that go with a head of keys, or with a part of its group.

    The last part of a group has what is left.
    """
    _, _, most, _, _, _, _, _, _, parts, group = sizes
    before = head % parts * most
    return head // parts * group + before, gl.minimum(most, group - before)


@gluon.jit
def job_of(number, sizes, CAUSAL: gl.constexpr):
    """(head of keys of all batches, block of keys, first block of queries, how many of them, whether there is one).

    A head's programs of one turn are at work at the same time, and begin at different blocks of queries, from which
    they go round.  With CAUSAL a turn has two jobs: one of the first blocks of keys, which many queries see, and one
    of the last: together as many as those of any other turn.  One of the two is even and comes first, the other is odd.
    """
    _, _, _, all_heads, m_blocks, n_blocks, tiles, width, _, _, _ = sizes
    if CAUSAL:
        tile = number // 2 * width + gl.program_id(0)
        head = tile // tiles
        pair = tile % tiles
        n = gl.where((number + pair) % 2 == 0, pair, 2 * tiles - 1 - pair)
        first = 2 * n
        count = m_blocks - first
        there = (head < all_heads) & (n < n_blocks)
    else:
        tile = number * width + gl.program_id(0)
        head = tile // n_blocks
        n = tile % n_blocks
        begin = gl.maximum(number * width - head * n_blocks, 0)
        end = gl.minimum((number + 1) * width - head * n_blocks, n_blocks)
        first = (n - begin) * m_blocks // gl.maximum(end - begin, 1)
        count = m_blocks
        there = head < all_heads
    return head, n, first, count, there


@gluon.jit
def block_of(number, step, first, m_blocks, CAUSAL: gl.constexpr):
    """The block of queries of a job's ``step``-th step within a head.

    With CAUSAL the first job of a turn goes up, the second one down, with neighbours exchanged: then the even blocks of
    keys come to a block of queries at steps that are m modulo 4, the odd ones at m + 2 (without groups), so that two
    additions lie two steps apart.
    """
    if CAUSAL:
        m = gl.where(number % 2 == 0, first + step, m_blocks - 1 - (step ^ 1))
    else:
        m = first + step
        m = gl.where(m >= m_blocks, m - m_blocks, m)
    return m


@gluon.jit
def evens_between(begin, end):
    """How many even numbers there are from ``begin`` to ``end``."""
    return gl.maximum(((end + 1) >> 1) - ((begin + 1) >> 1), 0)


@gluon.jit
def rank_of(number, head, member, n, m, sizes, CAUSAL: gl.constexpr):
    """How many blocks of keys add their dQ to block ``m`` of queries before block ``n`` does.

    They add in the order of their turns, within one in that of the step at which they come to the block; ``member`` is
    the head's number in its group.
    """
    _, _, _, _, m_blocks, n_blocks, pairs, width, _, _, _ = sizes
    _, group = members_of(head, sizes)
    if CAUSAL:
        # Of a turn are the blocks of keys begin <= n < end, and back = 2 pairs - end <= n < 2 pairs - begin.  The even
        # ones come to m at step up_0 - n up_n, the odd ones at down_0 + n down_n; at one step the even one comes first.
        begin = gl.maximum(number // 2 * width - head * pairs, 0)
        end = gl.minimum((number // 2 + 1) * width - head * pairs, pairs)
        seen = gl.minimum(m // 2 + 1, n_blocks)  # blocks of keys that these queries see
        back = 2 * pairs - end
        back_end = gl.minimum(2 * pairs - begin, seen)
        before = gl.minimum(begin, seen) + seen - back_end
        end = gl.minimum(end, seen)
        up_0 = member * m_blocks + m
        up_n = 2 * (member + 1)
        down_0 = (group + member) * m_blocks - (4 * pairs - 2) * group + ((m_blocks - 1 - m) ^ 1)
        down_n = 2 * (group - member)
        # Of the even ones those from since on are there before, of the odd ones those up to until.
        even = number % 2 == 0
        slope = gl.where(even, down_n, up_n)  # of those of the other kind
        ahead = gl.maximum(up_0 - down_0 - n * (2 * group + 2 - slope), 0)
        bound = (ahead + slope - 1) // slope
        since = gl.where(even, n + 1, bound)
        until = gl.where(even, bound, n)
        rank = before + evens_between(gl.maximum(since, begin), end) + evens_between(gl.maximum(since, back), back_end)
        rank += evens_between(begin + 1, gl.minimum(until, end) + 1) + evens_between(
            back + 1, gl.minimum(until, back_end) + 1
        )
    else:
        begin = gl.maximum(number * width - head * n_blocks, 0)
        end = gl.minimum((number + 1) * width - head * n_blocks, n_blocks)
        count = end - begin
        last = ((m + 1) * count - 1) // m_blocks  # of those that begin at m or before
        place = last - (n - begin)
        rank = begin + gl.where(place < 0, place + count, place)
    return rank


@gluon.jit
def masks_of(number, step, n, first, count, sizes, CAUSAL: gl.constexpr, TAIL: gl.constexpr, ROWS: gl.constexpr):
    """(first query, whether some keys are masked) of a job's step in a head; without CAUSAL all see as many keys."""
    _, _, _, _, m_blocks, n_blocks, _, _, _, _, _ = sizes
    masked = False
    first_m = 1 << 30
    if TAIL:
        masked = n == n_blocks - 1
    if CAUSAL:
        m = block_of(number, step, first, m_blocks, CAUSAL)
        masked = masked | (m < first + 2)
        first_m = m * ROWS
    return first_m, masked


@gluon.jit
def part_of(number, part, count, steps):
    """(whether part ``part`` of a causal job's steps is the diagonal's, where it begins, where it ends).

    In a head two steps are, and so need a mask: the first ones of a long job, the last ones of a short one.  The others
    have a loop of their own, for the assembler moves nothing across a branch to the mask.  Where a part begins is
    computed, not carried from the one before: Triton 3.6 and 3.7.1 drop what a loop carries for the bounds of an inner
    one alone.
    """
    diagonal = (part + number) % 2 == 0
    before = gl.where(number % 2 == 0, 2, count - 2)  # steps of a head's first part
    begin = part // 2 * count + part % 2 * before
    return diagonal, begin, gl.minimum(begin + gl.where(diagonal, 2, count - 2), steps)


@gluon.jit
def slots_of(step, u, UNROLL: gl.constexpr):
    """(slot, next slot, parity, next parity) of the ring; slots are known when compiled where the loop is unrolled."""
    slot = step % STAGES
    next_slot = (step + 1) % STAGES
    if UNROLL == STAGES:
        slot = u
        next_slot = (u + 1) % STAGES
    return slot, next_slot, step // STAGES & 1, (step + 1) // STAGES & 1
