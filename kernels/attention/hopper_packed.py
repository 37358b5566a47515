"""Packed sequences of different lengths on Hopper (sm_90): the forward pass of :mod:`.hopper_forward` over a list.

A kernel lists the tiles (:mod:`.listing`); programs of the second one are persistent and take them in turns, for all
heads.  Descriptors end where a sequence does (:func:`.blocks.ragged`), so no tile reads or writes its neighbour's rows.
"""

from atlas.declaration import gpu_of
from atlas.operators import launch

from .blocks import LOG2E, wide
from .hopper_few_keys import forward_takes_few_keys, packed_few_keys
from .hopper_forward import attention_forward_kernel, keys_of_block, out_columns, right_columns
from .hopper_tiles import ROWS, ragged_descriptor_of
from .listing import listed


def forward_packed(q, k, v, out, lse, cu_q, cu_k, max_q, max_k, causal, scale, *, config):
    """Fill out and lse [h, rows] of packed q [rows, h, d], k and v [keys, g, d], that descriptors can be of."""
    rows, heads, head_dim = q.shape
    if forward_takes_few_keys(max_k, head_dim):
        packed_few_keys(q, k, v, out, lse, cu_q, cu_k, max_q, max_k, causal, scale)
        return
    width, keys = wide(head_dim), keys_of_block(head_dim)
    tiles, capacity = listed(cu_q, cu_k, rows, max_q, causal, False, ROWS * config["CONSUMERS"], keys)
    launch(
        attention_forward_kernel, (min(gpu_of(q.device).sms, capacity * heads),),
        ragged_descriptor_of(q, ROWS, width), ragged_descriptor_of(k, keys, width),
        ragged_descriptor_of(v, keys, width), ragged_descriptor_of(out, ROWS, out_columns(head_dim)), lse,
        scale * LOG2E.value, rows, 0, heads, heads // k.shape[1], 0, 0, tiles,
        CAUSAL=causal, ROWS=ROWS, BLOCK_N=keys, TAIL=True, RIGHT=right_columns(head_dim),
        OUT_RIGHT=right_columns(head_dim), PACKED=True, num_warps=4, **config,
    )  # fmt: skip
