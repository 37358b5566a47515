"""Forward variant `clustered`: few long rows, each in the registers of the programs of a cluster.

A program reads its part of a row once, and tells the others its maximum and the sum of its exponentials: 8 bytes to
each program's shared memory.  `split` writes these to memory, and reads the row again in a second launch.

Triton has no words for this, so it is PTX.  A program's room is a barrier, which counts the bytes that are to come, and
a pair of each program behind it, in static shared memory that only the inline assembly knows.  Nobody waits in the end:
a program is sent nothing more when it has all pairs.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Case, element_size
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch
from atlas.operators.clusters import Clustered
from triton.experimental import gluon

from kernels.common.rows import LOWEST

from .tiling import matrix_of

CLUSTERED_SPACE = {"CLUSTER": (4, 8), "num_warps": (8, 16)}
"""CLUSTER: programs of a row; CUDA promises no more than 8 of every GPU."""

_SHORTEST = 2**15
"""Elements of a row from which on it was timed: a program of its own holds shorter ones."""

_LONGEST = 2**17
"""Bytes of a row up to which eight programs are enough: of twice as many they are little faster than the 32 of `split`
(4 x 131072 bf16: 6.8 us for 7.1), of four times as many slower (2 x 262144: 8.1 for 7.6; H200)."""

_BARRIER = tl.constexpr(16)
"""Bytes of a program's room before the first pair."""


@gluon.constexpr_function
def _open_room(size):
    """Arrive at the cluster's barrier when one for the pairs awaits ``size`` of them; $0 is the room's address.

    Relaxed: of what comes before only that barrier must be seen, which is fenced.
    """
    return f"""{{ .reg .pred first; .reg .b32 thread; .shared .align 16 .b8 room[{_BARRIER.value + 8 * size}];
mov.u32 thread, %tid.x; setp.eq.u32 first, thread, 0; mov.u32 $0, room;
@first mbarrier.init.shared::cta.b64 [$0], 1;
@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {8 * size};
@first fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.relaxed.aligned; }}"""


@gluon.constexpr_function
def _exchange_pairs(size):
    """Send $1 and $2 of program $3 to all ``size`` rooms, each at $4 of its program; wait for theirs, from $0 on."""
    return f"""{{ .reg .pred some, done; .reg .b32 to, at, there, ready;
mov.u32 to, %tid.x; setp.lt.u32 some, to, {size}; mad.lo.u32 at, $3, 8, $4; add.u32 at, at, {_BARRIER.value};
barrier.cluster.wait.acquire.aligned;
@some mapa.shared::cluster.u32 there, at, to;
@some mapa.shared::cluster.u32 ready, $4, to;
@some st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {{$1, $2}}, [ready];
waiting: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$4], 0; @!done bra waiting;
add.u32 $0, $4, {_BARRIER.value}; }}"""


@triton.jit
def _clustered_kernel(x_ptr, y_ptr, n, CLUSTER: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
                      LOG: tl.constexpr):  # fmt: skip
    """Programs CLUSTER r to CLUSTER (r + 1) - 1 own row r, up to BLOCK columns each; n is a multiple of WIDTH.

    Maxima begin at LOWEST, so parts of -inf alone add 0; a row of them, or with NaN or +inf, comes out as NaN.
    """
    n = n // WIDTH * WIDTH  # so said, the compiler accesses WIDTH elements at once
    room = tl.inline_asm_elementwise(_open_room(CLUSTER), "=&r", [], dtype=tl.int32, is_pure=False, pack=1)
    part, row = tl.program_id(0) % CLUSTER, (tl.program_id(0) // CLUSTER).to(tl.int64)
    size = tl.cdiv(tl.cdiv(n, WIDTH), CLUSTER) * WIDTH
    place = tl.arange(0, BLOCK)
    columns = part * size + place
    mask = (place < size) & (columns < n)
    x = tl.load(x_ptr + row * n + columns, mask=mask, other=-float("inf")).to(tl.float32)
    own = tl.maximum(tl.max(x, axis=0), LOWEST)
    e = tl.exp(x - own)
    pairs = tl.inline_asm_elementwise(
        _exchange_pairs(CLUSTER), "=&r,f,f,r,r", [own, tl.sum(e, axis=0), part, room], dtype=tl.int32, is_pure=False,
        pack=1,
    )  # fmt: skip
    maxima, sums = tl.inline_asm_elementwise(
        "ld.shared.v2.f32 {$0, $1}, [$2];", "=f,=f,r", [pairs + 8 * tl.arange(0, CLUSTER)],
        dtype=(tl.float32, tl.float32), is_pure=False, pack=1,
    )  # fmt: skip
    row_max = tl.max(maxima, axis=0)
    total = tl.sum(sums * tl.exp(maxima - row_max), axis=0)
    y = x - row_max - tl.log(total) if LOG else e * (tl.exp(own - row_max) / total)
    tl.store(y_ptr + row * n + columns, y, mask=mask, cache_modifier=".cs")


def launch_clustered(x, mask=None, log=False, causal=False, *, config):
    """As `online`, without a mask and not causal; of rows of whole 16-byte vectors."""
    y = torch.empty_like(x)
    m, n, _ = matrix_of(x, causal)
    size, width = config["CLUSTER"], VECTOR_BYTES // x.element_size()
    part = triton.cdiv(triton.cdiv(n, width), size) * width  # columns of a program: whole vectors
    launch(
        Clustered(_clustered_kernel, size), (m,), x, y, n, CLUSTER=size, BLOCK=triton.next_power_of_2(part),
        WIDTH=width, LOG=log, num_warps=config["num_warps"],
    )  # fmt: skip
    return y


def handles_clustered(problem: Case, gpu: GPU) -> str:
    """So few rows that each program has a multiprocessor: 16 x 32768 bf16 takes 6.2 us, by `one_pass` 8.2; 12 x 65536
    6.0, by `split` 7.5; 6 x 32768 fp32 6.0, by `one_pass` 8.8 (H200).
    """
    sizes = dict(problem.sizes)
    if gpu.functional:
        return "clusters are not interpreted"
    if "mask" in sizes or sizes.get("causal"):
        return "rows under a mask"
    row = problem["n"] * element_size(problem.dtype)
    if row % VECTOR_BYTES:
        return "rows of no whole 16-byte vectors"
    if problem["m"] * CLUSTERED_SPACE["CLUSTER"][-1] > gpu.sms:
        return "more rows than clusters that run at once"
    short_or_long = problem["n"] < _SHORTEST or row > _LONGEST
    return f"rows of less than {_SHORTEST} elements, or over {_LONGEST} bytes" if short_or_long else ""


def clustered_default(problem: Case, gpu: GPU) -> dict:
    return {"CLUSTER": CLUSTERED_SPACE["CLUSTER"][-1], "num_warps": CLUSTERED_SPACE["num_warps"][-1]}
