"""The backward pass of heads of more than 128 on Hopper (sm_90): a kernel for dK and dV, one for dQ, in Gluon.

They make seven products where :mod:`.hopper_backward` makes five.  That one's dQ would be added to memory after every
64 keys, for there are registers for no more; here nothing is added up in memory, and no program waits for another.
"""

from atlas.declaration import gpu_of
from atlas.operators import launch

from .blocks import LOG2E, wide, widest
from .hopper_keys import keys_kernel
from .hopper_parts import right_of
from .hopper_queries import GROUPS, queries_kernel
from .hopper_tiles import ROWS, descriptor_of, plain_descriptor_of, section_for
from .parts import add_parts, parts_for, sums_for

KEYS = 64
"""Keys of a block, in both kernels."""


def launch_wide(q, k, v, dout, stats, gradients, causal, scale):
    """Fill dq, dk and dv; q [b, h, l, d], k [b, g, s, d], v [b, g, s, e], as the copy engine can read them.

    The larger of d and e is 129 to 256: the copy engine fills narrower heads up with 0, V's to 128 columns if d is it.

    With ``causal`` query i sees keys up to i, and there are no more keys than queries.  ``stats`` [2, b, h, padded] are
    log2(e) lse and D of each query, inf and 0 behind the last up to whole blocks of both groups.
    """
    launch_keys(q, k, v, dout, stats, gradients[1:], causal, scale)
    launch_queries(q, k, v, dout, stats, gradients[0], causal, scale)


def launch_keys(q, k, v, dout, stats, gradients, causal, scale):
    """The first of the two kernels of :func:`launch_wide`; ``gradients`` are dk and dv."""
    (batch, heads, len_q), (heads_k, len_k) = q.shape[:3], k.shape[1:3]
    width, values, second = widths_of(k, v)
    m_blocks, n_blocks = -(-len_q // ROWS), -(-len_k // KEYS)
    parts = parts_for(q, k, KEYS, causal)
    dk_sums, dv_sums = sums = sums_for(widest(k, v), parts) if parts > 1 else (None, None)
    heads_k *= parts
    gpu = gpu_of(q.device)
    programs = min(gpu.sms, batch * heads_k * n_blocks)
    read = heads // heads_k * len_q * (q.shape[3] + v.shape[3]) * q.itemsize
    launch(
        keys_kernel, (programs,),
        descriptor_of(q, ROWS, width // 2), descriptor_of(dout, ROWS, values), descriptor_of(k, KEYS, width),
        *(descriptor_of(x, KEYS, values) for x in (v, *gradients)),
        plain_descriptor_of(stats.view(2, batch * heads, stats.shape[3]), [1, 1, ROWS]), dk_sums, dv_sums,
        scale * LOG2E.value, scale, heads_k, heads // heads_k, m_blocks, n_blocks, batch * heads_k,
        section_for(n_blocks, programs, batch * heads_k, 1, read, gpu.l2_bytes), parts, len_k,
        CAUSAL=causal, DIVIDED=parts > 1, ROWS=ROWS, KEYS=KEYS, **second, num_warps=4,
    )  # fmt: skip
    if parts > 1:
        add_parts(sums, gradients, parts)


def launch_queries(q, k, v, dout, stats, dq, causal, scale):
    """The second one."""
    (batch, heads, len_q), (heads_k, len_k) = q.shape[:3], k.shape[1:3]
    width, values, second = widths_of(k, v)
    m_blocks = -(-len_q // (ROWS * GROUPS.value))
    gpu = gpu_of(q.device)
    programs = min(gpu.sms, batch * heads * m_blocks)
    read = len_k * (k.shape[3] + v.shape[3]) * k.itemsize
    launch(
        queries_kernel, (programs,),
        descriptor_of(q, ROWS, width), descriptor_of(dout, ROWS, values), descriptor_of(k, KEYS, width),
        descriptor_of(v, KEYS, values), descriptor_of(dq, ROWS, values), stats, scale * LOG2E.value, scale,
        len_k, heads, heads // heads_k, m_blocks, batch * heads,
        section_for(m_blocks, programs, batch * heads, heads // heads_k, read, gpu.l2_bytes), stats.shape[3],
        CAUSAL=causal, TAIL=len_k % KEYS != 0, ROWS=ROWS, KEYS=KEYS, **second, num_warps=4,
    )  # fmt: skip


def widths_of(k, v):
    """(columns that K is computed in, those that V is, what the kernels know of the second parts of either).

    Of V narrower than K the columns of a head's first part may do, half of K's.
    """
    columns = widest(k, v).shape[3]
    width, right = wide(columns), right_of(columns)
    if 2 * v.shape[3] <= width:
        return width, width // 2, {"RIGHT": right, "VALUES_RIGHT": 0}
    return width, width, {"RIGHT": right, "VALUES_RIGHT": right}
