"""The backward pass: variant `blocks`, and the gradient that already lies where the logits were."""

import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.operators import launch

from kernels.common.lanes import edges, lanes_of

from .row import factors_of, gradient_of
from .total import empty_like, lanes, stride


@triton.jit
def _backward_kernel(
    x_ptr, target_ptr, lse_ptr, scale_ptr, dloss_ptr, dx_ptr, n, stride_xm, blocks,
    ignore_index, label_smoothing, z_loss,
    PER_ROW: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """One program owns one block of LANES x WIDTH elements of one row's dx, the row's first one its edges as well.

    AT_ONCE: logits are read before the target is known, whether the row counts or not.
    """
    pid = tl.program_id(0)
    i = pid // blocks
    base, begin, body, end = lanes_of(i.to(tl.int64) * stride_xm, n, WIDTH, ALIGNED)
    x_ptr += base
    dx_ptr += base
    target = tl.load(target_ptr + i)
    counted = target != ignore_index
    lane = (pid - i * blocks) * (LANES * WIDTH) + tl.arange(0, LANES) * WIDTH
    offs = lane[:, None] + tl.arange(0, WIDTH)[None, :]
    # A row that does not count is not read: -inf becomes 0.
    x = tl.load(x_ptr + offs, mask=((lane < body) & (counted | AT_ONCE))[:, None], other=-float("inf")).to(tl.float32)
    lse = tl.load(lse_ptr + i)
    g = tl.load(scale_ptr) * tl.load(dloss_ptr + i * PER_ROW).to(tl.float32)
    weight, floor, peak = factors_of(lse, n, label_smoothing, z_loss)
    at = (begin + target).to(tl.int32)
    tl.store(
        dx_ptr + offs, gradient_of(x, lse, weight, floor, peak, g, offs == at, counted), mask=(lane < body)[:, None]
    )
    if not ALIGNED:
        edge = edges(body, WIDTH)
        inside = (edge >= begin) & (edge < end) & (pid == i * blocks)
        x = tl.load(x_ptr + edge, mask=inside & (counted | AT_ONCE), other=-float("inf")).to(tl.float32)
        tl.store(dx_ptr + edge, gradient_of(x, lse, weight, floor, peak, g, edge == at, counted), mask=inside)


_AT_ONCE = 2**16
"""Bytes of logits an SM that are read in one round trip to memory, for which the one for targets is as long."""


def launch_backward(x, target, lse, scale, dloss, ignore_index, reduction, label_smoothing, z_loss, *, config):
    m, n = x.shape
    dx = empty_like(x)
    blocks, at_once = triton.cdiv(n, config["BLOCK_N"]), _AT_ONCE * gpu_of(x.device).sms
    launch(
        _backward_kernel, (m * blocks,),
        x, target, lse, scale, dloss, dx, n, stride(x), blocks, ignore_index, label_smoothing, z_loss,
        PER_ROW=dloss.dim(), **lanes(x, config), AT_ONCE=x.numel() * x.element_size() <= at_once,
        num_warps=config["num_warps"],
    )  # fmt: skip
    return dx


@triton.jit
def _scale_kernel(dx_ptr, dloss_ptr, n, stride_xm, blocks, BLOCK: tl.constexpr):
    """One program owns BLOCK elements of a row of dx: multiplied by dloss in place, unless that is 1."""
    pid = tl.program_id(0)
    i = pid // blocks
    offs = (pid - i * blocks) * BLOCK + tl.arange(0, BLOCK)
    dloss = tl.load(dloss_ptr).to(tl.float32)
    if dloss != 1.0:
        dx_ptr += i.to(tl.int64) * stride_xm
        dx = tl.load(dx_ptr + offs, mask=offs < n).to(tl.float32)
        tl.store(dx_ptr + offs, dx * dloss, mask=offs < n)


def multiply(dx, dloss):
    """Multiply dx [m, n] by the gradient of the loss, in place."""
    blocks = triton.cdiv(dx.shape[1], 4096)
    launch(_scale_kernel, (dx.shape[0] * blocks,), dx, dloss, dx.shape[1], stride(dx), blocks, BLOCK=4096)
