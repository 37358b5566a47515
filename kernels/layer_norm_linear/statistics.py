"""The first kernel: mean and rstd of the rows of x, and the normalised rows where they are asked for."""

import torch
import triton
import triton.language as tl
from atlas.declaration import rows
from atlas.operators import launch


@triton.jit
def _normalize_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, rest_ptr, rstd_ptr, n, eps,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OUT: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns one row of any length: its mean and rstd, and with HAS_OUT the normalised row.

    Each lane, WIDTH neighbours that one thread loads at once, keeps count, mean and squared deviations M2 of what it
    has seen and merges each block's into them (Chan, Golub, LeVeque 1979), so a large mean cancels nothing.

    The mean is mean + rest, the second what rounding left of the first: half an ulp of a large mean shifts all of a row
    alike, and a product's sum over W's columns, where these have a mean of their own, adds that shift up.
    """
    n = n // WIDTH * WIDTH  # n is a multiple of WIDTH; so said, the compiler accesses WIDTH elements at once
    row = tl.program_id(0).to(tl.int64) * n
    offs = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    count, m2 = tl.zeros([LANES], tl.float32), tl.zeros([LANES], tl.float32)
    mean, rest = tl.zeros([LANES], tl.float32), tl.zeros([LANES], tl.float32)
    for start in tl.range(0, n, LANES * WIDTH):
        x = tl.load(x_ptr + row + start + offs, mask=start + offs < n, other=0.0).to(tl.float32)
        # WIDTH divides n, so a lane is in the row as a whole or not at all.
        added = tl.where(start + tl.arange(0, LANES) * WIDTH < n, WIDTH, 0).to(tl.float32)
        block_mean = tl.sum(x, axis=1) / WIDTH
        centred = x - block_mean[:, None]
        delta = block_mean - mean + (tl.sum(centred, axis=1) / WIDTH - rest)
        share = added / tl.maximum(count + added, 1.0)
        m2 += tl.sum(centred * centred, axis=1) + delta * delta * count * share
        moved = mean + delta * share
        rest += delta * share - (moved - mean)
        mean = moved
        count += added
    row_mean = tl.sum(count * mean, axis=0) / n
    between = mean - row_mean + rest
    row_rest = tl.sum(count * between, axis=0) / n
    between -= row_rest
    rstd = tl.rsqrt((tl.sum(m2 + count * between * between, axis=0) / n + eps).to(tl.float32))
    tl.store(mean_ptr + tl.program_id(0), row_mean)
    tl.store(rest_ptr + tl.program_id(0), row_rest)
    tl.store(rstd_ptr + tl.program_id(0), rstd)
    if HAS_OUT:
        for start in tl.range(0, n, LANES * WIDTH):
            mask = start + offs < n
            x = tl.load(x_ptr + row + start + offs, mask=mask, other=0.0).to(tl.float32)
            out = (x - row_mean - row_rest) * rstd
            if HAS_WEIGHT:
                out *= tl.load(weight_ptr + start + offs, mask=mask, other=0.0).to(tl.float32)
            if HAS_BIAS:
                out += tl.load(bias_ptr + start + offs, mask=mask, other=0.0).to(tl.float32)
            tl.store(out_ptr + row + start + offs, out, mask=mask)


def launch_normalize(x, weight, bias, out, eps, num_warps=None):
    """(mean, rest, rstd) of the rows of x; the normalised rows go to ``out`` where there is one."""
    m, k = x.shape
    mean, rest, rstd = (torch.empty(m, dtype=torch.float32, device=x.device) for _ in range(3))
    vectors = triton.next_power_of_2(k) * x.element_size() // (32 * rows.VECTOR_BYTES)
    num_warps = num_warps or max(1, min(8, vectors // 2))  # two 16-byte vectors a thread
    launch(
        _normalize_kernel, (m,), x, weight, bias, out, mean, rest, rstd, k, eps,
        HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None, HAS_OUT=out is not None,
        **rows.lanes(x, 2 * 32 * num_warps * rows.VECTOR_BYTES // x.element_size()), num_warps=num_warps,
    )  # fmt: skip
    return mean, rest, rstd
