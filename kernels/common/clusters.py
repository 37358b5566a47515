"""Programs of a cluster add what each has summed of one tile, through shared memory: no parts, and no second kernel.

A kernel is compiled for one program and launched in clusters of C (:class:`atlas.operators.Clustered`).  Each of these
programs has sums [P, Q] of a part of k, in wgmma's registers.  It sends them in blocks of 16 bytes a thread, block b to
program b % C of the cluster, which adds up the C of them in the order of programs, so bits are the same at every run,
and writes the result.  How much is sent does not depend on the product's sizes: partial tiles send all.

Gluon has no words for this, so it is PTX.  A program's room is for a barrier for each group of warps that has sums,
which counts the bytes that are to come, and for what comes:

- static shared memory (48 KiB at most) that only the kernel's inline assembly knows, or
- where that is too small, the beginning of Triton's own, once nothing is read from there any more.  Triton puts what is
  allocated first at the beginning: that must be the ring of the kernel's operands, and at least as large.

The cluster's barrier counts all threads: each arrives once, of whichever role, then waits once, and roles fill up whole
groups of four warps.  Nobody waits in the end: a program is sent nothing more when it has all its sums.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

BARRIERS = gl.constexpr(1024)
"""Bytes of static shared memory for barriers, 16 for each group; so swizzled blocks begin on 1 KiB behind it."""

_STATIC_BYTES = 48 * 1024
"""The most static shared memory of a program."""

_DYNAMIC = gl.constexpr("mov.u32 $0, global_smem;")
"""The address at which Triton's own shared memory begins."""

_ARRIVE = gl.constexpr("{ barrier.cluster.arrive.relaxed.aligned; mov.b32 $0, 0; }")
"""Relaxed: of what comes before only barriers must be seen, which ``_EXPECT`` fences; to release all takes longer."""

_AWAIT = gl.constexpr("{ barrier.cluster.wait.acquire.aligned; mov.b32 $0, 0; }")

_EXPECT = gl.constexpr("""{ .reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0;
@p mbarrier.init.shared::cta.b64 [$1], 1;
@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2;
@p fence.mbarrier_init.release.cluster; mov.b32 $0, 0; }""")
"""The barrier at $1 awaits $2 bytes; the first thread says so."""

_SEND = gl.constexpr("""{ .reg .b32 a, m, r; .reg .pred own; mov.u32 r, %cluster_ctarank; setp.eq.u32 own, r, $12;
mapa.shared::cluster.u32 a, $8, $12; mapa.shared::cluster.u32 m, $16, $12;
@own st.shared.v4.f32 [$8], {$4, $5, $6, $7};
@!own st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [a], {$4, $5, $6, $7}, [m];
mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; }""")
"""Four sums, $4 on, to address $8 of program $12, whose barrier $16 counts them; of all but sums four are equal.

A program's own are stored there, and not counted: the thread that adds them is the one that has them.
"""

_OF_SEND = gl.constexpr(",".join(["=&r"] * 4 + ["f"] * 4 + ["r"] * 12))

_WAIT = gl.constexpr("""{ .reg .pred done;
waiting: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$1], 0; @!done bra waiting;
mov.b32 $0, 0; }""")

_LOAD = gl.constexpr("ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];")

_OF_LOAD = gl.constexpr(",".join(["=f"] * 4 + ["r"] * 4))

_OF_WRITE = gl.constexpr(",".join(["=&r"] * 4 + ["f"] * 4 + ["l"] * 4 + ["r"] * 4))


@gluon.constexpr_function
def _static(size):
    return "{ .shared .align 1024 .b8 room[%d]; mov.u32 $0, room; }" % size  # noqa: UP031 - braces are PTX's


@gluon.jit
def _ask(ASM: gl.constexpr):
    return gl.inline_asm_elementwise(ASM, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.constexpr_function
def _write_asm(bf16, fours):
    """PTX: sums (4..7) of two columns in rows of W g and g + 8 to address 8, where 12 is set: four of a row of y.

    They become 16 bits and are turned over, 8 x 8 at a time.  With ``fours`` a lane then has its four, else
    neighbouring lanes swap two: each has four rows of W side by side, of its row of y.
    """
    lines = ["{ .reg .b32 low, high, mine, other; .reg .pred there, odd; setp.ne.b32 there, $12, 0;"]
    for name, at in (("low", 4), ("high", 6)):
        lines.append(f"cvt.rn.{'bf16' if bf16 else 'f16'}x2.f32 {name}, ${at + 1}, ${at};")
        lines.append(f"movmatrix.sync.aligned.m8n8.trans.b16 {name}, {name};")
    if not fours:
        lines.append("mov.u32 mine, %laneid; and.b32 mine, mine, 1; setp.ne.b32 odd, mine, 0;")
        lines.append("selp.b32 mine, low, high, odd; shfl.sync.bfly.b32 other, mine, 1, 31, -1;")
        lines.append("selp.b32 low, other, low, odd; selp.b32 high, high, other, odd;")
    lines.append("@there st.global.v2.b32 [$8], {low, high};")
    return "\n".join([*lines, "mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; }"])


@gluon.constexpr_function
def _blocks(P, Q, W):
    """Blocks that W warps have of sums [P, Q]."""
    return P * Q // (128 * W)


@gluon.constexpr_function
def own_blocks(P, Q, W, C):
    """The most of them that one program of C adds up."""
    return (P * Q // (128 * W) + C - 1) // C


@gluon.constexpr_function
def buffer_bytes(P, Q, W, C):
    """What a program receives of one group: its blocks, of each of C programs."""
    return C * ((P * Q // (128 * W) + C - 1) // C) * W * 512


def static_bytes(buffers):
    """Static shared memory of a program that receives so many bytes: ``BARRIERS`` alone where they come to the ring."""
    whole = -(-(BARRIERS.value + buffers) // 1024) * 1024
    return whole if whole <= _STATIC_BYTES else BARRIERS.value


def launchable(static, own):
    """The least bytes of Triton's own shared memory, ``own`` or more, that can be launched beside ``static``.

    CUDA has to be asked for more than 48 KiB in all.  Triton does so where its own are more, whatever is static, and
    else launches are refused as "invalid argument": 40 KiB of its own beside 17, for one.
    """
    return own if static + own + BARRIERS.value <= _STATIC_BYTES else max(own, _STATIC_BYTES + 1)


@gluon.jit
def room_of(rank, GROUPS: gl.constexpr, P: gl.constexpr, Q: gl.constexpr, W: gl.constexpr, C: gl.constexpr,
            STATIC: gl.constexpr):  # fmt: skip
    """(address of barriers, of buffers) of GROUPS groups of W warps, each with sums [P, Q]; made before roles part.

    ``rank``: the program's number in its cluster, ``gl.program_id(0) % C``.
    """
    barriers = _ask(_static(STATIC))
    buffers = barriers + BARRIERS
    if STATIC == BARRIERS:
        buffers = _ask(_DYNAMIC)
    blocks = (_blocks(P, Q, W) - rank + C - 1) // C
    for group in gl.static_range(GROUPS):
        to_come = blocks * ((C - 1) * W * 512)  # its own are not sent
        gl.inline_asm_elementwise(
            _EXPECT, "=r,r,r", [barriers + 16 * group, to_come], dtype=gl.int32, is_pure=False, pack=1
        )
    return barriers, buffers


@gluon.jit
def arrive():
    """Tell the cluster's programs that this thread reads nothing of where they send."""
    _ask(_ARRIVE)


@gluon.jit
def await_all():
    """Wait until all threads of the cluster's programs have arrived."""
    _ask(_AWAIT)


@gluon.jit
def arrive_first(STATIC: gl.constexpr):
    """Arrive at the beginning of a role that reads the ring, where nothing is sent to there."""
    if STATIC > BARRIERS:
        arrive()


@gluon.jit
def meet(STATIC: gl.constexpr):
    """Arrive if that is still to be done, now that the ring is read, and wait for all."""
    if STATIC == BARRIERS:
        arrive()
    await_all()


@gluon.jit
def send(acc, room, rank, GROUP: gl.constexpr, W: gl.constexpr, C: gl.constexpr):
    """Send a group's sums [P, Q] to the programs that add them, once the cluster has met."""
    P: gl.constexpr = acc.shape[0]
    Q: gl.constexpr = acc.shape[1]
    layout: gl.constexpr = acc.type.layout
    p = gl.arange(0, P, gl.SliceLayout(1, layout))[:, None]
    q = gl.arange(0, Q, gl.SliceLayout(0, layout))[None, :]
    block = p // (16 * W) * (Q // 8) + q // 8  # of 16 W rows and 8 columns: two of either for each lane
    thread = p // 16 % W * 32 + p % 8 * 4 + q % 8 // 2
    place = (rank * own_blocks(P, Q, W, C) + block // C) * (32 * W) + thread
    at = room[1] + GROUP * buffer_bytes(P, Q, W, C) + place * 16
    barrier = room[0] + 16 * GROUP + gl.zeros_like(at)
    gl.inline_asm_elementwise(
        _SEND, _OF_SEND, [acc, at, block % C, barrier], dtype=gl.int32, is_pure=False, pack=4
    )  # fmt: skip


@gluon.jit
def await_sums(room, GROUP: gl.constexpr):
    """Wait for all that is sent to this program's group."""
    gl.inline_asm_elementwise(
        _WAIT, "=r,r", [gl.to_tensor(room[0] + 16 * GROUP)], dtype=gl.int32, is_pure=False, pack=1
    )  # fmt: skip


@gluon.jit
def place_of(rank, number, P: gl.constexpr, Q: gl.constexpr, W: gl.constexpr, C: gl.constexpr):
    """(p, q, whether there are any) of the sums of this program's block ``number`` [128 W].

    There are ``own_blocks`` of them, but some programs have one less.
    """
    element = gl.arange(0, 128 * W, gl.BlockedLayout([4], [32], [W], [0]))
    block, lane = number * C + rank, element // 4 % 32
    p = block // (Q // 8) * (16 * W) + element // 128 * 16 + element % 4 // 2 * 8 + lane // 4
    q = block % (Q // 8) * 8 + lane % 4 * 2 + element % 2
    return p, q, block < _blocks(P, Q, W)


@gluon.jit
def _received(at, DTYPE: gl.constexpr):
    """Four sums of each address, which counts four times."""
    return gl.inline_asm_elementwise(_LOAD, _OF_LOAD, [at], dtype=gl.float32, is_pure=False, pack=4).to(
        DTYPE, bitcast=True
    )


@gluon.jit
def added(
    room, rank, number, GROUP: gl.constexpr, P: gl.constexpr, Q: gl.constexpr, W: gl.constexpr, C: gl.constexpr,
    DTYPE: gl.constexpr = gl.float32,
):  # fmt: skip
    """Sums of all programs, of this program's block ``number``, and what ``place_of`` says of it.

    Of 32 bits: others than fp32 are sent as what fp32 has the same bits.
    """
    flat: gl.constexpr = gl.BlockedLayout([4], [32], [W], [0])
    own: gl.constexpr = own_blocks(P, Q, W, C)
    element = gl.arange(0, 128 * W, flat)
    at = room[1] + GROUP * buffer_bytes(P, Q, W, C) + (number * (32 * W) + element // 4) * 16
    total = _received(at, DTYPE)
    for _ in gl.static_range(1, C):
        at += own * W * 512
        total += _received(at, DTYPE)
    p, q, there = place_of(rank, number, P, Q, W, C)
    return total, p, q, there


@gluon.jit
def write_added(
    y_ptr, room, rank, n, m, N, M, GROUP: gl.constexpr, BLOCK_M: gl.constexpr, C: gl.constexpr, FOURS: gl.constexpr
):
    """Add this program's share of sums [64, BLOCK_M] of four warps; write it to y [M, N], 16 bits, from (m, n) on.

    N is a multiple of 4.  FOURS: of 64 columns of y the sums have 8 t + 4 i + 2 h + j in row 16 i + 8 h + 2 t + j of
    32, as weights turned over in registers come: four of a lane side by side.
    """
    BF16: gl.constexpr = y_ptr.dtype.element_ty == gl.bfloat16
    thread = gl.arange(0, 512, gl.BlockedLayout([4], [32], [4], [0])) // 4
    warp, g, t = thread // 32, thread % 32 // 4, thread % 4
    column = n + warp * 16 + t % 2 * 8 + t // 2 * 4
    if FOURS:
        column = n + warp // 2 * 32 + t * 8 + warp % 2 * 4
    row = m + rank * 8 + g
    ptrs = y_ptr + row.to(gl.int64) * N + column
    rows = gl.where(column < N, gl.minimum(M - m, BLOCK_M) + m - row, 0)  # that are left
    for number in gl.static_range(own_blocks(64, BLOCK_M, 4, C)):
        total, _, _, _ = added(room, rank, number, GROUP, 64, BLOCK_M, 4, C)
        there = (rows > number * C * 8).to(gl.int32)
        gl.inline_asm_elementwise(
            _write_asm(BF16, FOURS), _OF_WRITE, [total, ptrs.to(gl.int64), there], dtype=gl.int32, is_pure=False, pack=4
        )
        ptrs += N.to(gl.int64) * (8 * C)
