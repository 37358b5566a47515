"""The backward pass for Hopper (sm_90), variant `gluon`: which kernels are for which heads, and what they need."""

import torch
from atlas.declaration import GPU, Case, Config, gpu_of

from .backward import launch_backward, launch_statistics, padded_length
from .blocks import describable, widest
from .cases import case_of
from .few_keys import FEW, backward_few_keys, backward_takes_few_keys, dealt_out, few_keys_config
from .hopper_backward import launch_by_tma
from .hopper_few_keys_backward import backward_few_keys_by_tma, sooner_by_tma
from .hopper_schedule import KEYS, ROWS
from .hopper_wide import launch_wide
from .spaces import backward_default, for_hopper

HEADS = range(40, 257, 8)
"""Heads that there is a kernel for: they are computed in 64, 128 or 256 columns.

Those of 32 in 64 take 1.38 of the time of `descriptor`, which adds no columns (571 keys, causal, H200).
"""

HEADS_OF_FEW_KEYS = range(16, 257, 8)
"""The same where one block holds all keys; smaller ones are computed in 32 columns, or in 16."""

LARGEST = 128
"""The largest head of those whose gradients are all computed in one kernel; of others dQ has a kernel of its own."""

_BUSY_STEPS = 4
"""Blocks of queries of a multiprocessor from which on tiles that hold all keys of a head are sooner done (H200).

Their statistics have a kernel of their own, 6 us.  Measured from 9 on.
"""


def whole_sooner(q, k):
    """Whether tiles take few keys of wide heads sooner than programs that begin and end with each head of K.

    Their loads run under the head before.  With 64 keys or queries half of a tile would be for nothing, and heads of K
    too few for the multiprocessors are dealt out by :func:`.few_keys.dealt_out` alone.
    """
    (batch, heads, len_q, head_dim), len_k = q.shape, k.shape[2]
    if not 64 < head_dim <= LARGEST or not KEYS < len_k <= 2 * KEYS or len_q <= ROWS:
        return False
    parts, _ = dealt_out(q, k, few_keys_config(head_dim, len_k)["num_warps"])
    return parts == 1 and batch * heads * -(-len_q // ROWS) >= _BUSY_STEPS * gpu_of(q.device).sms


def launch_hopper_backward(q, k, v, out, lse, dout, dlse, causal, scale, *, config):
    """:func:`launch_backward` in Gluon; what the copy engine cannot read goes the way of pointers."""
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    if not all(map(describable, (q, k, v, dout, *gradients))):
        plain = backward_default(case_of(q, k, causal), gpu_of(q.device), pointers=True)
        return launch_backward(False, q, k, v, out, lse, dout, dlse, causal, scale, config=plain)
    if backward_takes_few_keys(q, k) and not whole_sooner(q, k):
        if describable(out) and sooner_by_tma(q, k):
            return backward_few_keys_by_tma(q, k, v, out, lse, dout, dlse, causal, scale)
        config = few_keys_config(q.shape[3], k.shape[2])
        return backward_few_keys(True, q, k, v, out, lse, dout, dlse, causal, scale, config=config)
    into_gradients((q, k, v, out, lse, dout, dlse), gradients, causal, scale, config)
    return gradients


def into_gradients(saved, gradients, causal, scale, config):
    """Fill dq, dk and dv, all of what the copy engine can read; ``saved`` are q, k, v, out, lse, dout and dlse."""
    q, k, v, _, _, dout, _ = saved
    lengths = q.shape[0], q.shape[2], k.shape[2]
    if widest(k, v).shape[3] > LARGEST:
        launch_wide(q, k, v, dout, launch_statistics(saved, None, None, lengths), gradients, causal, scale)
        return
    turns = None
    if lengths[2] > 2 * KEYS or widest(k, v).shape[3] <= 64:  # blocks of keys add up dQ in turn
        blocks = q.shape[0] * q.shape[1] * padded_length(q.shape[2]) // ROWS
        turns = torch.empty(blocks, dtype=torch.int32, device=q.device)
    stats = launch_statistics(saved, turns, None, lengths)
    launch_by_tma(q, k, v, dout, stats, turns, gradients, causal, scale, config=config)


def fits_hopper_backward(config: Config, problem: Case, gpu: GPU) -> str:
    return "" if config["EVEN"] or problem["d"] <= LARGEST else "of wide heads no program waits for another"


def for_hopper_backward(problem: Case, gpu: GPU, heads=HEADS) -> str:
    if problem["causal"] and problem["s"] > problem["l"]:
        return "a program's first blocks of keys have as many queries as there are, its last ones none"
    return for_hopper(heads, problem, gpu)


def handles_hopper_backward(problem: Case, gpu: GPU) -> str:
    """Why a case is not for this variant: of few keys narrower heads are, which `descriptor` takes longer for."""
    return for_hopper_backward(problem, gpu, HEADS_OF_FEW_KEYS if problem["s"] <= FEW else HEADS)
