"""The kernel, and its launchers.

Memory bounds it, so queries and keys go in one launch, heads are read where they lie, through their strides, and each
element's partner is in the same thread.  Arithmetic is fp32 whatever the dtype.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Case, element_size
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch


@triton.jit
def _rotate_lanes(
    x_ptr, out_ptr, cos_ptr, sin_ptr, block, batches, seq, heads,
    stride_xb, stride_xs, stride_xh, stride_ob, stride_os, stride_oh, stride_cb, stride_cs, stride_cn,
    HALF: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr,
    HEADS_INNER: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """Rotate LANES lanes, WIDTH neighbouring pairs that one thread loads at once, HALF // WIDTH of them to a head.

    Lanes are counted through all heads as these lie in memory, so that whatever the head's size none is idle.
    """
    lane = block * LANES + tl.arange(0, LANES)
    row, first = lane // (HALF // WIDTH), lane % (HALF // WIDTH) * WIDTH
    if HEADS_INNER:
        offs_h, outer = row % heads, row // heads
        offs_s, offs_b = outer % seq, outer // seq
    else:
        offs_s, outer = row % seq, row // seq
        offs_h, offs_b = outer % heads, outer // heads
    mask = (offs_b < batches)[:, None]
    offs_b, offs_s, offs_h = offs_b.to(tl.int64), offs_s.to(tl.int64), offs_h.to(tl.int64)
    pairs = tl.arange(0, WIDTH)[None, :]
    angles = (offs_b * stride_cb + offs_s * stride_cs)[:, None] + (first[:, None] + pairs) * stride_cn
    x_ptrs = x_ptr + (offs_b * stride_xb + offs_s * stride_xs + offs_h * stride_xh)[:, None]
    out_ptrs = out_ptr + (offs_b * stride_ob + offs_s * stride_os + offs_h * stride_oh)[:, None]
    if INTERLEAVED:
        offs_d = 2 * first[:, None] + tl.arange(0, 2 * WIDTH)[None, :]
        x = tl.load(x_ptrs + offs_d, mask=mask).to(tl.float32)
        one, two = tl.split(tl.reshape(x, (LANES, WIDTH, 2)))
    else:
        offs_d = first[:, None] + pairs
        one = tl.load(x_ptrs + offs_d, mask=mask).to(tl.float32)
        two = tl.load(x_ptrs + HALF + offs_d, mask=mask).to(tl.float32)
    cos = tl.load(cos_ptr + angles, mask=mask).to(tl.float32)
    sin = tl.load(sin_ptr + angles, mask=mask).to(tl.float32)
    if INVERSE:
        sin = -sin
    turned_one = one * cos - two * sin
    turned_two = two * cos + one * sin
    if INTERLEAVED:
        turned = tl.reshape(tl.join(turned_one, turned_two), (LANES, 2 * WIDTH))
        tl.store(out_ptrs + offs_d, turned, mask=mask)
    else:
        tl.store(out_ptrs + offs_d, turned_one, mask=mask)
        tl.store(out_ptrs + HALF + offs_d, turned_two, mask=mask)


@triton.jit
def _rope_kernel(
    q_ptr, q_out_ptr, k_ptr, k_out_ptr, cos_ptr, sin_ptr, blocks_q, batches, seq, heads_q, heads_k,
    stride_qb, stride_qs, stride_qh, stride_qob, stride_qos, stride_qoh,
    stride_kb, stride_ks, stride_kh, stride_kob, stride_kos, stride_koh, stride_cb, stride_cs, stride_cn,
    HALF: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
    HEADS_INNER: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """The first ``blocks_q`` programs own LANES lanes of queries each, the others as many of keys.

    ``k_ptr`` may be None.  A program loads all of its lanes before it stores any, and stores where it loaded:
    ``q_out_ptr`` may be ``q_ptr``.  ALIGNED: rows of the tables begin on whole lanes, which no stride of 40 tells.
    """
    if ALIGNED:
        stride_cb, stride_cs = stride_cb // WIDTH * WIDTH, stride_cs // WIDTH * WIDTH
    pid = tl.program_id(0)
    if pid < blocks_q:
        _rotate_lanes(
            q_ptr, q_out_ptr, cos_ptr, sin_ptr, pid, batches, seq, heads_q,
            stride_qb, stride_qs, stride_qh, stride_qob, stride_qos, stride_qoh, stride_cb, stride_cs, stride_cn,
            HALF, LANES, WIDTH, HEADS_INNER, INTERLEAVED, INVERSE,
        )  # fmt: skip
    elif k_ptr is not None:  # settled when compiled: without keys there is nothing to compile
        _rotate_lanes(
            k_ptr, k_out_ptr, cos_ptr, sin_ptr, pid - blocks_q, batches, seq, heads_k,
            stride_kb, stride_ks, stride_kh, stride_kob, stride_kos, stride_koh, stride_cb, stride_cs, stride_cn,
            HALF, LANES, WIDTH, HEADS_INNER, INTERLEAVED, INVERSE,
        )  # fmt: skip


def launch_forward(q, k, cos, sin, interleaved, heads_first, *, config):
    return _launch_outputs(q, k, cos, sin, interleaved, heads_first, False, config)


def launch_backward(dq_out, dk_out, cos, sin, interleaved, heads_first, *, config):
    return _launch_outputs(dq_out, dk_out, cos, sin, interleaved, heads_first, True, config)


def _launch_outputs(q, k, cos, sin, interleaved, heads_first, inverse, config):
    """Like the inputs, strides included, as far as these leave no gaps."""
    q_out, k_out = torch.empty_like(q), None if k is None else torch.empty_like(k)
    launch_into(q, k, q_out, k_out, cos, sin, interleaved, heads_first, inverse, config)
    return q_out if k is None else (q_out, k_out)


def launch_into(q, k, q_out, k_out, cos, sin, interleaved, heads_first, inverse, config):
    batch, seq, heads_q, head_dim = sizes(q, heads_first)
    heads_k = 0 if k is None else sizes(k, heads_first)[2]
    half, angles = head_dim // 2, _angle_strides(cos, head_dim, interleaved)
    width = _width(half, q.element_size(), interleaved)
    lanes = 32 * config["num_warps"] * config["VECTORS"]
    blocks_q, blocks_k = (triton.cdiv(batch * seq * heads * half // width, lanes) for heads in (heads_q, heads_k))
    if blocks_q + blocks_k:
        launch(
            _rope_kernel, (blocks_q + blocks_k,), q, q_out, k, k_out, cos, sin, blocks_q, batch, seq, heads_q, heads_k,
            *_strides(q, heads_first), *_strides(q_out, heads_first),
            *_strides(k, heads_first), *_strides(k_out, heads_first), *angles,
            HALF=half, LANES=lanes, WIDTH=width, ALIGNED=angles[0] % width == 0 and angles[1] % width == 0,
            HEADS_INNER=heads_inner(q, heads_first), INTERLEAVED=interleaved, INVERSE=inverse,
            num_warps=config["num_warps"],
        )  # fmt: skip


def _width(half, size, interleaved):
    """Pairs of a lane: a 16-byte vector of each half, or of both elements, or less that divides a head."""
    return math.gcd(half, VECTOR_BYTES // size // (2 if interleaved else 1))


def sizes(x, heads_first):
    """(batch, seq, heads, head_dim)."""
    batch, seq, heads, head_dim = x.shape
    return (batch, heads, seq, head_dim) if heads_first else (batch, seq, heads, head_dim)


def _strides(x, heads_first):
    """Of batch, seq and heads; zeros where there is no tensor."""
    if x is None:
        return 0, 0, 0
    batch, seq, heads, _ = x.stride()
    return (batch, heads, seq) if heads_first else (batch, seq, heads)


def heads_inner(x, heads_first):
    """Whether the heads of a token lie closer together than the tokens of a head."""
    _, stride_s, stride_h = _strides(x, heads_first)
    return stride_h <= stride_s


def _angle_strides(cos, head_dim, interleaved):
    """Of batch, seq and pairs, in a table of [seq, ...] or [batch or 1, seq, ...]."""
    stride_b = cos.stride(0) if cos.dim() == 3 and cos.shape[0] > 1 else 0
    twice = interleaved and cos.shape[-1] == head_dim  # each angle stands twice, side by side
    return stride_b, cos.stride(-2), cos.stride(-1) * (2 if twice else 1)


def handles_lanes(problem: Case, gpu: GPU) -> str:
    half = problem["head_dim"] // 2
    heads = problem["batch"] * problem["seq"] * max(problem["heads"], problem["kv_heads"])
    lanes = heads * half // _width(half, element_size(problem.dtype), problem["interleaved"])
    return f"{lanes} lanes are counted in 32 bits" if lanes >= 2**31 - 2**12 else ""


SPACE = {"VECTORS": (1, 2, 4), "num_warps": (2, 4, 8)}
