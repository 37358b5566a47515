"""Variants `gluon` on Hopper (sm_90): which of attention's Gluon kernels take heads of two sizes, and their configs.

Q and K are in blocks of their own columns, V and out of theirs.  The backward kernels have one width for all, but 128
columns for V beside heads of Q and K of more, where they are enough.
"""

import torch
from atlas.declaration import GPU, Case, Config, gpu_of

from kernels.attention import hopper_forward
from kernels.attention.backward import launch_backward
from kernels.attention.blocks import describable
from kernels.attention.forward import launch_forward
from kernels.attention.hopper_few_keys import forward_few_keys, forward_takes_few_keys
from kernels.attention.hopper_gradients import LARGEST, fits_hopper_backward, for_hopper_backward, into_gradients
from kernels.attention.small import blocks_us, tiles_us
from kernels.attention.spaces import for_hopper

from .cases import case_of, of_one_size
from .spaces import backward_default, forward_default

SMALLEST = 32
"""The least columns of the smaller heads."""

_SOONER = 0.9
"""Below which share of the expected time of Gluon's tiles blocks were faster."""


def launch_hopper(q, k, v, causal, scale, *, config):
    """:func:`launch_forward` in Gluon; what the copy engine cannot read goes the way of pointers."""
    if all(map(describable, (q, k, v))):
        if forward_takes_few_keys(k.shape[2], max(q.shape[3], v.shape[3])):
            return forward_few_keys(q, k, v, causal, scale)
        return hopper_forward.launch_by_tma(q, k, v, causal, scale, config=config)
    plain = forward_default(case_of(q, k, v, causal), gpu_of(q.device), pointers=True)
    return launch_forward(False, q, k, v, causal, scale, config=plain)


def launch_hopper_backward(q, k, v, out, lse, dout, dlse, causal, scale, *, config):
    """:func:`launch_backward` in Gluon; what the copy engine cannot read goes the way of pointers."""
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    if not all(map(describable, (q, k, v, dout, *gradients))):
        plain = backward_default(case_of(q, k, v, causal), gpu_of(q.device), pointers=True)
        return launch_backward(False, q, k, v, out, lse, dout, dlse, causal, scale, config=plain)
    into_gradients((q, k, v, out, lse, dout, dlse), gradients, causal, scale, config)
    return gradients


def hopper_default(problem: Case, gpu: GPU) -> dict[str, int]:
    return hopper_forward.hopper_default(of_one_size(problem), gpu)


def fits_hopper(config: Config, problem: Case, gpu: GPU) -> str:
    return hopper_forward.fits_hopper(config, of_one_size(problem), gpu)


def handles_hopper(problem: Case, gpu: GPU) -> str:
    """Why the Gluon kernel of the forward pass is not for a case."""
    return _sizes(problem) or for_hopper(hopper_forward.HEADS, of_one_size(problem), gpu)


def fits_gradient(config: Config, problem: Case, gpu: GPU) -> str:
    return fits_hopper_backward(config, of_one_size(problem), gpu)


def handles_gradient(problem: Case, gpu: GPU) -> str:
    """Why those of the backward pass are not for a case.

    Up to 128 columns `descriptor`, whose products have the columns of either, may be done before: what both are
    expected to take tells which, at six shapes of an H200 (least 3 % apart, 2x16 heads of 96 and 64, 194 queries 33 us
    for 19).
    """
    alike = of_one_size(problem)
    reason = _sizes(problem) or for_hopper_backward(alike, gpu)
    if reason or alike["d"] > LARGEST:
        return reason
    share = (4 * problem["d"] + 3 * problem["e"]) / (7 * alike["d"])  # of the operations of heads of one size
    sooner = share * blocks_us(alike, gpu) < _SOONER * tiles_us(alike, gpu)
    return "blocks of `descriptor` are sooner done" if sooner else ""


def _sizes(problem: Case) -> str:
    """Why heads of these sizes are not for Gluon: of the larger one its own rules tell."""
    fits = all(size >= SMALLEST and size % 8 == 0 for size in (problem["d"], problem["e"]))
    return "" if fits else f"for heads of {SMALLEST} columns and more, in whole 16 bytes"
