"""Layer normalisation over rows: out[i, j] = (x[i, j] - mean_i) * rstd_i * weight[j] + bias[j].

mean_i and var_i are over the n elements of row i, rstd_i = 1 / sqrt(var_i + eps).  Forward reads x and writes out, MN
elements each; everything else is M or N.  Backward, with xhat = (x - mean) * rstd and g = dy * weight:

    dx = rstd * (g - xhat * sum_j(g * xhat) / n - sum_j(g) / n),  dweight = sum_i dy * xhat,  dbias = sum_i dy

It reads x and dy and writes dx, 3 MN.  dweight and dbias cross the rows: each program sums those of the rows it owns
and writes one partial row; a last kernel adds the partial rows, always in one order.  Arithmetic is fp32 whatever the
dtype.

Variants: `one_pass`, `persistent` and backward's `rows` hold whole rows in registers (the least traffic); `stream` and
backward's `columns` read rows of any length twice.
"""

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    GPU,
    Case,
    Declaration,
    Pass,
    Variant,
    case,
    choose,
    compiled,
    compiled_gradients,
    eager,
    element_size,
    gpu_of,
    gradients,
    torch_dtype,
)


@triton.jit
def _normalize(x, mask_n, n, eps):
    """(xhat, mean, rstd) of a tile of whole rows: the variance is taken about the mean, so nothing cancels."""
    mean = tl.sum(x, axis=1) / n
    centred = tl.where(mask_n, x - mean[:, None], 0.0)
    rstd = tl.rsqrt((tl.sum(centred * centred, axis=1) / n + eps).to(tl.float32))  # eps is fp64 under torch.compile
    return centred * rstd[:, None], mean, rstd


@triton.jit
def _one_pass_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, rstd_ptr, m, n, eps,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows; BLOCK_N >= n, so they stay in registers from load to store."""
    n = n // WIDTH * WIDTH  # n is a multiple of WIDTH; so said, the compiler accesses WIDTH elements at once
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    mask_m, mask_n = offs_m < m, offs_n < n
    mask = mask_m[:, None] & mask_n
    # 0 is the identity of the sum; the padding is kept out of the variance by _normalize.
    x = tl.load(x_ptr + offs_m[:, None] * n + offs_n, mask=mask, other=0.0).to(tl.float32)
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + offs_n, mask=mask_n, other=0.0)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + offs_n, mask=mask_n, other=0.0)
    out, mean, rstd = _normalize(x, mask_n, n, eps)
    tl.store(mean_ptr + offs_m, mean, mask=mask_m)
    tl.store(rstd_ptr + offs_m, rstd, mask=mask_m)
    if HAS_WEIGHT:
        out *= weight.to(tl.float32)
    if HAS_BIAS:
        out += bias.to(tl.float32)
    tl.store(out_ptr + offs_m[:, None] * n + offs_n, out, mask=mask)


@triton.jit
def _persistent_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, rstd_ptr, m, n, eps,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """One program owns every `num_programs`-th block of BLOCK_M rows; it loads weight and bias once."""
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    mask_n = offs_n < n
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + offs_n, mask=mask_n, other=0.0)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + offs_n, mask=mask_n, other=0.0)
    for block in tl.range(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.num_programs(0), num_stages=NUM_STAGES):
        offs_m = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        mask_m = offs_m < m
        mask = mask_m[:, None] & mask_n
        x = tl.load(x_ptr + offs_m[:, None] * n + offs_n, mask=mask, other=0.0, eviction_policy="evict_first")
        out, mean, rstd = _normalize(x.to(tl.float32), mask_n, n, eps)
        tl.store(mean_ptr + offs_m, mean, mask=mask_m)
        tl.store(rstd_ptr + offs_m, rstd, mask=mask_m)
        if HAS_WEIGHT:
            out *= weight.to(tl.float32)
        if HAS_BIAS:
            out += bias.to(tl.float32)
        tl.store(out_ptr + offs_m[:, None] * n + offs_n, out, mask=mask)


@triton.jit
def _stream_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, rstd_ptr, n, eps,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns one row of any length, in blocks of LANES x WIDTH elements.

    Each lane, WIDTH neighbours that one thread loads at once, keeps count, mean and squared deviations M2 of what it
    has seen and merges each block's into them (Chan, Golub, LeVeque 1979), so neither a large mean nor a drift along
    the row cancels.  The second sweep goes backwards: what was read last is in cache.
    """
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    row = tl.program_id(0).to(tl.int64) * n
    offs = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    count, mean, m2 = tl.zeros([LANES], tl.float32), tl.zeros([LANES], tl.float32), tl.zeros([LANES], tl.float32)
    for start in tl.range(0, n, LANES * WIDTH):
        offs_n = start + offs
        x = tl.load(x_ptr + row + offs_n, mask=offs_n < n, other=0.0, eviction_policy="evict_last").to(tl.float32)
        # WIDTH divides n, so a lane is in the row as a whole or not at all.
        added = tl.where(start + tl.arange(0, LANES) * WIDTH < n, WIDTH, 0).to(tl.float32)
        block_mean = tl.sum(x, axis=1) / WIDTH
        centred = x - block_mean[:, None]
        delta = block_mean - mean
        share = added / tl.maximum(count + added, 1.0)
        m2 += tl.sum(centred * centred, axis=1) + delta * delta * count * share
        mean += delta * share
        count += added
    row_mean = tl.sum(count * mean, axis=0) / n
    between = mean - row_mean
    rstd = tl.rsqrt((tl.sum(m2 + count * between * between, axis=0) / n + eps).to(tl.float32))
    tl.store(mean_ptr + tl.program_id(0), row_mean)
    tl.store(rstd_ptr + tl.program_id(0), rstd)
    last = (n - 1) // (LANES * WIDTH) * (LANES * WIDTH)
    for done in tl.range(0, n, LANES * WIDTH):
        offs_n = last - done + offs
        mask = offs_n < n
        x = tl.load(x_ptr + row + offs_n, mask=mask, eviction_policy="evict_first").to(tl.float32)
        out = (x - row_mean) * rstd
        if HAS_WEIGHT:
            out *= tl.load(weight_ptr + offs_n, mask=mask).to(tl.float32)
        if HAS_BIAS:
            out += tl.load(bias_ptr + offs_n, mask=mask).to(tl.float32)
        tl.store(out_ptr + row + offs_n, out, mask=mask, cache_modifier=".cs")


@triton.jit
def _backward_rows_kernel(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, dx_ptr, partial_ptr, m, n,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """One program owns every `num_programs`-th block of BLOCK_M rows: their dx, and one partial row of dweight, dbias.

    The partial rows stay in registers, one per row of the tile, until the last block; partial_ptr is
    [HAS_WEIGHT + HAS_BIAS, num_programs, n].
    """
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    pid, programs = tl.program_id(0), tl.num_programs(0)
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    mask_n = offs_n < n
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + offs_n, mask=mask_n, other=0.0)
        dweight = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if HAS_BIAS:
        dbias = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for block in tl.range(pid, tl.cdiv(m, BLOCK_M), programs, num_stages=NUM_STAGES):
        offs_m = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        mask_m = offs_m < m
        mask = mask_m[:, None] & mask_n
        offs = offs_m[:, None] * n + offs_n
        # dy is 0 in the padding, and every sum has dy as a factor.
        x = tl.load(x_ptr + offs, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        dy = tl.load(dy_ptr + offs, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        mean = tl.load(mean_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
        xhat = (x - mean) * rstd
        g = tl.fma(dy, weight.to(tl.float32), 0.0) if HAS_WEIGHT else dy  # rounded: see _backward_columns_kernel
        along = tl.sum(g * xhat, axis=1)[:, None] / n
        level = tl.sum(g, axis=1)[:, None] / n
        tl.store(dx_ptr + offs, (g - xhat * along - level) * rstd, mask=mask)
        if HAS_WEIGHT:
            dweight += dy * xhat
        if HAS_BIAS:
            dbias += dy
    columns = tl.arange(0, BLOCK_N)
    partial_ptr += pid.to(tl.int64) * n + columns
    if HAS_WEIGHT:
        tl.store(partial_ptr, tl.sum(dweight, axis=0), mask=columns < n)
    if HAS_BIAS:
        tl.store(partial_ptr + HAS_WEIGHT * programs.to(tl.int64) * n, tl.sum(dbias, axis=0), mask=columns < n)


@triton.jit
def _row_sums_kernel(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, along_ptr, level_ptr, n,
    HAS_WEIGHT: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns one row of any length: along = sum_j(g * xhat) / n and level = sum_j(g) / n."""
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    row = tl.program_id(0).to(tl.int64) * n
    offs = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    mean, rstd = tl.load(mean_ptr + tl.program_id(0)), tl.load(rstd_ptr + tl.program_id(0))
    along, level = tl.zeros([LANES], tl.float32), tl.zeros([LANES], tl.float32)
    for start in tl.range(0, n, LANES * WIDTH):
        offs_n = start + offs
        mask = offs_n < n
        x = tl.load(x_ptr + row + offs_n, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(dy_ptr + row + offs_n, mask=mask, other=0.0).to(tl.float32)
        if HAS_WEIGHT:
            g *= tl.load(weight_ptr + offs_n, mask=mask, other=0.0).to(tl.float32)
        along += tl.sum(g * (x - mean), axis=1)
        level += tl.sum(g, axis=1)
    tl.store(along_ptr + tl.program_id(0), tl.sum(along, axis=0) * rstd / n)
    tl.store(level_ptr + tl.program_id(0), tl.sum(level, axis=0) / n)


@triton.jit
def _backward_columns_kernel(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, along_ptr, level_ptr, dx_ptr, partial_ptr, m, n,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_N columns of every `num_programs(1)`-th block of BLOCK_M rows.

    The rows' sums are known, so it needs no other column; partial_ptr is [HAS_WEIGHT + HAS_BIAS, num_programs(1), n].
    """
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    pid, programs = tl.program_id(1), tl.num_programs(1)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_n = columns[None, :]
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + offs_n, mask=offs_n < n, other=0.0).to(tl.float32)
    dweight, dbias = tl.zeros([BLOCK_M, BLOCK_N], tl.float32), tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for block in tl.range(pid, tl.cdiv(m, BLOCK_M), programs):
        offs_m = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        mask_m = offs_m < m
        mask = mask_m[:, None] & (offs_n < n)
        offs = offs_m[:, None] * n + offs_n
        x = tl.load(x_ptr + offs, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        dy = tl.load(dy_ptr + offs, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        # Loaded as vectors and widened after: as [BLOCK_M, 1] tiles each thread would load them once per column.
        mean = tl.load(mean_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
        along = tl.load(along_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
        level = tl.load(level_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
        xhat = (x - mean) * rstd
        # Rounded as in the sums: merged into the subtraction it would leave rows of one element a dx that is not 0.
        g = tl.fma(dy, weight, 0.0) if HAS_WEIGHT else dy
        tl.store(dx_ptr + offs, (g - xhat * along - level) * rstd, mask=mask, cache_modifier=".cs")
        dweight += dy * xhat
        dbias += dy
    partial_ptr += pid.to(tl.int64) * n + columns
    if HAS_WEIGHT:
        tl.store(partial_ptr, tl.sum(dweight, axis=0), mask=columns < n)
    if HAS_BIAS:
        tl.store(partial_ptr + HAS_WEIGHT * programs.to(tl.int64) * n, tl.sum(dbias, axis=0), mask=columns < n)


@triton.jit
def _sum_partials_kernel(partial_ptr, out_ptr, p, n, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr):
    """One program owns BLOCK_N columns of out[i, n] = sum over the p rows of partial[i, p, n], in a fixed order."""
    i = tl.program_id(1)
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_P, BLOCK_N], tl.float32)
    for start in tl.range(0, p, BLOCK_P):
        offs_p = start + tl.arange(0, BLOCK_P)
        mask = (offs_p[:, None] < p) & (offs_n[None, :] < n)
        total += tl.load(
            partial_ptr + (i * p + offs_p).to(tl.int64)[:, None] * n + offs_n[None, :], mask=mask, other=0.0
        )
    tl.store(out_ptr + i * n + offs_n, tl.sum(total, axis=0), mask=offs_n < n)


def _outputs(x):
    return torch.empty_like(x), *_statistics(x)


def _statistics(x):
    """Two vectors of one fp32 value a row."""
    return tuple(torch.empty(x.shape[0], dtype=torch.float32, device=x.device) for _ in range(2))


def _flags(weight, bias):
    return {"HAS_WEIGHT": int(weight is not None), "HAS_BIAS": int(bias is not None)}


def _blocks(x, config):
    """Programs for blocks of BLOCK_M rows, at most PROGRAMS_PER_SM on each SM where the config says so."""
    blocks = triton.cdiv(x.shape[0], config["BLOCK_M"])
    return min(blocks, config["PROGRAMS_PER_SM"] * gpu_of(x.device).sms) if "PROGRAMS_PER_SM" in config else blocks


def _width(x):
    """Elements of a 16-byte vector where rows consist of whole ones, else 1."""
    width = _VECTOR_BYTES // x.element_size()
    return 1 if x.shape[1] % width else width


def _lanes(x, block_n):
    return {"LANES": block_n // _width(x), "WIDTH": _width(x)}


def _launch_one_pass(x, weight, bias, eps, *, config):
    out, mean, rstd = _outputs(x)
    m, n = x.shape
    _one_pass_kernel[(_blocks(x, config),)](
        x, weight, bias, out, mean, rstd, m, n, eps, **_flags(weight, bias),
        BLOCK_M=config["BLOCK_M"], BLOCK_N=triton.next_power_of_2(n), WIDTH=_width(x), num_warps=config["num_warps"],
    )  # fmt: skip
    return out, mean, rstd


def _launch_persistent(x, weight, bias, eps, *, config):
    out, mean, rstd = _outputs(x)
    m, n = x.shape
    _persistent_kernel[(_blocks(x, config),)](
        x, weight, bias, out, mean, rstd, m, n, eps, **_flags(weight, bias),
        BLOCK_M=config["BLOCK_M"], BLOCK_N=triton.next_power_of_2(n), WIDTH=_width(x),
        NUM_STAGES=config["num_stages"], num_warps=config["num_warps"],
    )  # fmt: skip
    return out, mean, rstd


def _launch_stream(x, weight, bias, eps, *, config):
    out, mean, rstd = _outputs(x)
    m, n = x.shape
    _stream_kernel[(m,)](
        x, weight, bias, out, mean, rstd, n, eps, **_flags(weight, bias), **_lanes(x, config["BLOCK_N"]),
        num_warps=config["num_warps"],
    )  # fmt: skip
    return out, mean, rstd


def _sum_partials(partial, weight, bias):
    """(dweight, dbias) from partial [HAS_WEIGHT + HAS_BIAS, p, n]; None for what the layer does not have."""
    gradients, p, n = partial.shape
    if not gradients:
        return None, None
    out = torch.empty((gradients, n), dtype=(bias if weight is None else weight).dtype, device=partial.device)
    # Columns for two programs an SM, from the 128 bytes of a cache line on; rows to fill 16 elements a thread.
    columns = triton.next_power_of_2(gradients * n // (2 * gpu_of(partial.device).sms) + 1)
    block_n = min(256, max(32, columns))
    _sum_partials_kernel[(triton.cdiv(n, block_n), gradients)](
        partial, out, p, n, BLOCK_P=16 * 32 * 8 // block_n, BLOCK_N=block_n, num_warps=8
    )
    return out[0] if weight is not None else None, out[-1] if bias is not None else None


def _launch_backward_rows(x, weight, bias, mean, rstd, dy, *, config):
    m, n = x.shape
    programs, flags = _blocks(x, config), _flags(weight, bias)
    dx = torch.empty_like(x)
    partial = torch.empty((sum(flags.values()), programs, n), dtype=torch.float32, device=x.device)
    _backward_rows_kernel[(programs,)](
        x, weight, mean, rstd, dy, dx, partial, m, n, **flags,
        BLOCK_M=config["BLOCK_M"], BLOCK_N=triton.next_power_of_2(n), WIDTH=_width(x),
        NUM_STAGES=config["num_stages"], num_warps=config["num_warps"],
    )  # fmt: skip
    return dx, *_sum_partials(partial, weight, bias)


def _launch_backward_columns(x, weight, bias, mean, rstd, dy, *, config):
    m, n = x.shape
    flags, block_n, dx = _flags(weight, bias), config["BLOCK_N"], torch.empty_like(x)
    along, level = _statistics(x)
    _row_sums_kernel[(m,)](
        x, weight, mean, rstd, dy, along, level, n, HAS_WEIGHT=flags["HAS_WEIGHT"], **_row_sums_shape(x),
    )  # fmt: skip
    columns = triton.cdiv(n, block_n)
    rows = triton.cdiv(config["PROGRAMS_PER_SM"] * gpu_of(x.device).sms, columns)
    programs = min(rows, triton.cdiv(m, config["BLOCK_M"]))
    partial = torch.empty((sum(flags.values()), programs, n), dtype=torch.float32, device=x.device)
    _backward_columns_kernel[(columns, programs)](
        x, weight, mean, rstd, dy, along, level, dx, partial, m, n, **flags,
        BLOCK_M=config["BLOCK_M"], BLOCK_N=block_n, WIDTH=_width(x), num_warps=config["num_warps"],
    )  # fmt: skip
    return dx, *_sum_partials(partial, weight, bias)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        variant, config = choose(DECLARATION, "forward", _case_of(x), x.device)
        out, mean, rstd = variant.launch(x, weight, bias, eps, config=config)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx, dy):
        x, weight, bias, mean, rstd = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
            return *_differentiable_backward(x, weight, bias, ctx.eps, dy), None
        variant, config = choose(DECLARATION, "backward", _case_of(x), x.device)
        return *variant.launch(x, weight, bias, mean, rstd, dy.contiguous(), config=config), None


def _differentiable_backward(x, weight, bias, eps, dy):
    inputs = [tensor for tensor in (x, weight, bias) if tensor is not None and tensor.requires_grad]
    out = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
    found = iter(torch.autograd.grad(out, inputs, dy, create_graph=True))
    return [next(found) if tensor is not None and tensor.requires_grad else None for tensor in (x, weight, bias)]


def _case_of(x):
    return case(_NAMES[x.dtype], m=x.shape[0], n=x.shape[1])


def layer_norm(
    input: torch.Tensor,
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """``torch.nn.functional.layer_norm`` in fp32, fp16 or bf16; statistics are fp32.

    ``normalized_shape`` are the sizes of the last dimensions; ``weight`` and ``bias`` have that shape and the input's
    dtype and device, or are None.  An input that is not contiguous is copied first.  Second
    derivatives go through torch's operations.  Raises TypeError for another dtype and ValueError for shapes or devices
    that do not fit.
    """
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if input.dtype not in _NAMES:
        raise TypeError(f"layer_norm takes {', '.join(_DTYPES)}: {input.dtype}")
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise ValueError(f"layer_norm: normalized_shape {shape} is not the end of the input's {tuple(input.shape)}")
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is None:
            continue
        if parameter.dtype != input.dtype:
            raise TypeError(f"layer_norm takes a {name} of the input's {input.dtype}: {parameter.dtype}")
        if tuple(parameter.shape) != shape or parameter.device != input.device:
            raise ValueError(
                f"layer_norm takes a {name} of shape {shape} on {input.device}: "
                f"{tuple(parameter.shape)} on {parameter.device}"
            )
    if not input.numel():
        return torch.nn.functional.layer_norm(input, shape, weight, bias, eps)  # nothing to launch for
    n = math.prod(shape)
    weight, bias = (p if p is None else p.reshape(n).contiguous() for p in (weight, bias))
    return _LayerNorm.apply(input.reshape(-1, n).contiguous(), weight, bias, eps).view(input.shape)


_DTYPES = ("fp32", "fp16", "bf16")
_NAMES = {torch_dtype(name): name for name in _DTYPES}


def _reference(x, weight, bias, eps):
    out, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)
    return out, mean.flatten(), rstd.flatten()


def _backward_reference(x, weight, bias, mean, rstd, dy):
    xhat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    along, level = (g * xhat).mean(dim=-1, keepdim=True), g.mean(dim=-1, keepdim=True)
    return (g - xhat * along - level) * rstd[:, None], (dy * xhat).sum(dim=0), dy.sum(dim=0)


def _torch_forward(x, weight, bias, mean, rstd):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, _EPS)


def _liger(x, weight, bias, eps):
    from liger_kernel.ops.layer_norm import layer_norm_forward

    out, _, mean, rstd, *_ = layer_norm_forward(x, weight, bias, eps)
    return out, mean, rstd


def _liger_forward(x, weight, bias, mean, rstd):
    from liger_kernel.transformers.functional import liger_layer_norm

    return liger_layer_norm(x, weight, bias, _EPS)


_EPS = 1e-5
"""torch's default, in all cases."""


def _inputs(problem: Case, device, generator):
    m, n = problem["m"], problem["n"]

    def draw(*shape):
        return torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)

    return {"x": draw(m, n), "weight": draw(n), "bias": draw(n), "eps": _EPS}


def _backward_inputs(problem: Case, device, generator):
    forward = _inputs(problem, device, generator)
    x = forward["x"]
    mean = x.float().mean(dim=-1)
    rstd = (x.float().var(dim=-1, correction=0) + _EPS).rsqrt()
    dy = torch.randn(x.shape, dtype=x.dtype, device=device, generator=generator)
    return {"x": x, "weight": forward["weight"], "bias": forward["bias"], "mean": mean, "rstd": rstd, "dy": dy}


def _cases(gpu: GPU) -> list[Case]:
    shapes = {
        "bf16": (
            (128, 1024),  # the launch is the cost
            (4096, 1024),
            (16384, 4096),
            (4096, 5120),  # a hidden size, no power of two
            (8192, 8192),
            (4096, 32768),
        ),
        "fp16": ((4096, 1024), (8192, 8192), (4096, 32768)),
        "fp32": ((4096, 1024), (8192, 8192), (4096, 32768)),
    }
    largest = gpu.memory_bytes // 8 // 3  # the three matrices of the backward pass in an eighth of the memory
    return [case(d, m=m, n=n) for d, pairs in shapes.items() for m, n in pairs if m * n * element_size(d) <= largest]


_EDGE_CASES = tuple(
    case(dtype, reason, m=m, n=n)
    for dtype in _DTYPES
    for m, n, reason in (
        (1, 1, "one element: its own mean, no variance"),
        (7, 1, "rows of one element: rstd is 1 / sqrt(eps)"),
        (1, 1000, "one row, not a power of two"),
        (37, 129, "odd rows, one element past a power of two: no row but the first starts on 16 bytes"),
        (33, 64, "one row more than whole tiles of rows"),
        (3, 4097, "rows one element longer than a block of the streaming variants: a tail of one"),
        (2, 20_000, "several blocks and a tail"),
        (140, 8, "more rows than programs: each owns several and adds them up"),
    )
)

# Of the shapes with as many elements one that every variant takes: n = 8192 is the longest row of backward's registers.
_HUGE_CASES = (case("bf16", "row offsets beyond 2^31: one row more than 2^31 elements hold", m=2**18 + 1, n=8192),)


_VECTOR_BYTES = 16
"""The widest access of one thread; narrower ones spend more instructions on the same bytes."""

_REGISTERS = 65_536
"""32-bit registers of one SM, on every GPU from sm_75 to sm_100: what all its programs share."""

_THREAD_REGISTERS = 255
"""The most that one thread can have."""

_OTHER_REGISTERS = 24
"""What a thread needs besides its elements: addresses, masks, counters (ptxas of Triton 3.7, sm_75 to sm_90)."""

_ENOUGH_IN_FLIGHT = 16384
"""Bytes of a tile: with two more of that size prefetched an SM has what covers memory's latency on an H200 (about
4.3 TB/s x 0.7 us / 132 SMs = 23 KB)."""

_EXCHANGE_BYTES = 1024
"""Shared memory through which the warps of a program exchange their sums, at most."""

_LIVE = {"one_pass": 2.0, "persistent": 2.8, "rows": 6.5}
"""Registers for each element of a tile: row, 16-bit weight and bias; the same, unrolled; row, dy, xhat, g, weight and
both sums (what ptxas of Triton 3.7 needs without spilling)."""


def _block_n(problem: Case) -> int:
    return triton.next_power_of_2(problem["n"])


def _row_sums_shape(x: torch.Tensor) -> dict:
    """Block of :func:`_row_sums_kernel`: two 16-byte vectors a thread of 8 warps, fewer warps for shorter rows."""
    vectors = triton.next_power_of_2(x.shape[1]) * x.element_size() // (32 * _VECTOR_BYTES)
    num_warps = max(1, min(8, vectors // 2))
    return _lanes(x, 2 * 32 * num_warps * _VECTOR_BYTES // x.element_size()) | {"num_warps": num_warps}


def _registers(config: dict, problem: Case, live: float) -> float:
    """Registers a thread needs to hold ``live`` fp32 values of each element of its tile."""
    return config["BLOCK_M"] * _block_n(problem) * live / (32 * config["num_warps"]) + _OTHER_REGISTERS


def _fits_one_pass(config: dict, problem: Case, gpu: GPU) -> str:
    return _rows_obstacle(config, problem, _LIVE["one_pass"])


def _rows_obstacle(config: dict, problem: Case, live: float) -> str:
    threads = 32 * config["num_warps"]
    needed, available = _registers(config, problem, live), min(_THREAD_REGISTERS, _REGISTERS // threads)
    if needed > available:
        return f"{needed:.0f} registers a thread, of {available}: rows would spill"
    tile = config["BLOCK_M"] * _block_n(problem)
    if config["num_warps"] > 1 and tile * element_size(problem.dtype) < threads * _VECTOR_BYTES:
        return "less than one 16-byte vector a thread"
    if config["BLOCK_M"] > 1 and config["BLOCK_M"] >= 2 * problem["m"]:
        return "a tile with room for twice the rows there are"
    return ""


def _fits_persistent(live: float, streams: int):
    """``fits`` for ``live`` registers an element and ``streams`` inputs whose next rows are prefetched."""

    def fits(config: dict, problem: Case, gpu: GPU) -> str:
        tile = config["BLOCK_M"] * _block_n(problem) * element_size(problem.dtype) * streams
        programs, threads = config["PROGRAMS_PER_SM"], 32 * config["num_warps"]

        def prefetched(stages: int) -> int:
            return (stages - 1) * tile + _EXCHANGE_BYTES

        if config["BLOCK_M"] > 1 and tile > _ENOUGH_IN_FLIGHT:
            return f"tiles of {tile} bytes: more rows at a time bring no more bytes into flight than memory can use"
        if threads > 32 and config["BLOCK_M"] * _block_n(problem) < 16 * threads:
            return "under 16 elements a thread: most of its registers would hold addresses"
        if config["num_stages"] == 1 and prefetched(3) * programs <= gpu.shared_bytes:
            return "nothing prefetched, though the shared memory has room for it"
        shared = prefetched(config["num_stages"])
        if shared > gpu.shared_bytes or shared * programs > gpu.shared_bytes_per_sm:
            return f"{programs} programs with {shared} bytes of prefetched rows exceed an SM's shared memory"
        registers = programs * threads * _registers(config, problem, live)
        if programs * config["num_warps"] > gpu.warps_per_sm or registers > _REGISTERS:
            return f"{programs} programs of {threads} threads exceed an SM's warps or registers"
        return _rows_obstacle(config, problem, live)

    return fits


def _fits_stream(config: dict, problem: Case, gpu: GPU) -> str:
    threads = 32 * config["num_warps"]
    vectors = config["BLOCK_N"] * element_size(problem.dtype) / (threads * _VECTOR_BYTES)
    if not 1 <= vectors <= 4:
        return f"{vectors:g} 16-byte vectors a thread; 1 to 4 keep memory busy without spills"
    if config["BLOCK_N"] > max(_block_n(problem), _STREAM_BLOCKS[0]):
        return "a block longer than the row"
    return ""


def _fits_columns(config: dict, problem: Case, gpu: GPU) -> str:
    elements = config["BLOCK_M"] * config["BLOCK_N"] / (32 * config["num_warps"])
    if not 8 <= elements <= 16:
        return f"{elements:g} elements a thread; 8 to 16 keep memory busy without spills"
    if config["BLOCK_N"] > max(_block_n(problem), _COLUMN_BLOCKS[0]):
        return "a block wider than the matrix"
    return ""


def _handles_rows(live: float):
    """``handles`` for ``live`` registers an element.

    A program that fills more than half of an SM's registers runs alone, and memory idles while it sums: on an H200 rows
    of 2^15 bf16 in registers reach 3.0 TB/s and streamed twice 3.4 TB/s (Triton 3.6).  Where the next rows are
    prefetched one program may fill them.
    """
    longest = _REGISTERS // 4 if live == _LIVE["one_pass"] else 1 << int(_REGISTERS / live).bit_length() - 1

    def handles(problem: Case, gpu: GPU) -> str:
        return f"rows of {problem['n']} elements, over {longest}" if problem["n"] > longest else ""

    return handles


def _one_pass_default(problem: Case, gpu: GPU) -> dict:
    """At least two rows a tile, which share weight and bias, and 32 elements a thread, 64 for long rows."""
    block_n = _block_n(problem)
    block_m = min(16, triton.next_power_of_2(problem["m"]), max(2, 2048 // block_n)) if block_n <= 8192 else 1
    return {"BLOCK_M": block_m, "num_warps": min(8, max(1, block_m * block_n // (32 * 32)))}


def _persistent_default(live: float, streams: int, block_m: int, warps_per_sm: int):
    """``default``: 32 elements a thread, at most ``block_m`` rows a tile, ``warps_per_sm`` warps or one program.

    With two stages nothing would be prefetched a whole block ahead.  A GPU whose shared memory or registers are short
    gets fewer programs, then no prefetching.
    """
    fits = _fits_persistent(live, streams)

    def default(problem: Case, gpu: GPU) -> dict:
        row = _block_n(problem) * element_size(problem.dtype) * streams
        rows = max(1, min(block_m, triton.next_power_of_2(problem["m"]), _ENOUGH_IN_FLIGHT // row))
        tile = {"BLOCK_M": rows, "num_warps": max(1, rows * _block_n(problem) // (32 * 32))}
        programs = [p for p in (4, 2, 1) if p * tile["num_warps"] <= warps_per_sm or p == 1]
        configs = [tile | {"num_stages": stages, "PROGRAMS_PER_SM": p} for stages in (3, 1) for p in programs]
        return next((config for config in configs if not fits(config, problem, gpu)), configs[-1])

    return default


def _stream_default(problem: Case, gpu: GPU) -> dict:
    """As many warps a row as leave the rows under way at once half of the L2, two 16-byte vectors a thread."""
    size, two_vectors = element_size(problem.dtype), 2 * 32 * _VECTOR_BYTES
    under_way = gpu.sms * gpu.warps_per_sm * problem["n"] * size  # with rows of one warp
    warps = min(32, max(4, 2 * under_way // gpu.l2_bytes))
    longest = max(_block_n(problem), _STREAM_BLOCKS[0])
    block_n = min((1 << warps.bit_length() - 1) * two_vectors // size, longest, _STREAM_BLOCKS[-1])
    return {"BLOCK_N": block_n, "num_warps": max(4, block_n * size // two_vectors)}


def _columns_default(problem: Case, gpu: GPU) -> dict:
    """Tiles of 16 elements a thread: as wide as the matrix, up to a kilobyte of a row, four warps of them."""
    return {"BLOCK_M": 4, "BLOCK_N": _COLUMN_BLOCKS[0], "num_warps": 4, "PROGRAMS_PER_SM": 4}


_STREAM_BLOCKS = (1024, 2048, 4096, 8192, 16384)
_COLUMN_BLOCKS = (512, 1024)
_ROWS_SPACE = {"BLOCK_M": (1, 2, 4, 8, 16), "num_warps": (1, 2, 4, 8, 16, 32)}
_PERSISTENT_SPACE = {
    "BLOCK_M": (1, 2, 4),
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 3, 4),
    "PROGRAMS_PER_SM": (1, 2, 4),
}
_STREAM_SPACE = {"BLOCK_N": _STREAM_BLOCKS, "num_warps": (4, 8, 16, 32)}
_COLUMNS_SPACE = {
    "BLOCK_M": (1, 2, 4, 8),
    "BLOCK_N": _COLUMN_BLOCKS,
    "num_warps": (4, 8),
    "PROGRAMS_PER_SM": (4, 8),
}


def _bytes(matrices: str, rows: str, columns: str):
    """Traffic of a pass: matrices [m, n] and columns [n] in the case's dtype, statistics [m] in fp32."""

    def cost(c: Case) -> dict[str, int]:
        size = element_size(c.dtype)
        return (
            dict.fromkeys(matrices.split(), c["m"] * c["n"] * size)
            | dict.fromkeys(rows.split(), c["m"] * element_size("fp32"))
            | dict.fromkeys(columns.split(), c["n"] * size)
        )

    return cost


DECLARATION = Declaration(
    name="layer_norm",
    family="rows",
    summary="out = (x - mean) * rstd * weight + bias over rows",
    function=layer_norm,
    call=lambda function, inputs: function(
        inputs["x"], inputs["x"].shape[-1:], inputs["weight"], inputs["bias"], inputs["eps"]
    ),
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("x", "weight", "bias"),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("out", "mean", "rstd"),
        variants=(
            Variant(
                name="one_pass",
                summary="rows in registers, one block of rows a program",
                launch=_launch_one_pass,
                space=_ROWS_SPACE,
                default=_one_pass_default,
                fits=_fits_one_pass,
                handles=_handles_rows(_LIVE["one_pass"]),
            ),
            Variant(
                name="persistent",
                summary="rows, weight and bias in registers, as many programs as fit the SMs, next rows prefetched",
                launch=_launch_persistent,
                space=_PERSISTENT_SPACE,
                default=_persistent_default(_LIVE["persistent"], streams=1, block_m=2, warps_per_sm=16),
                fits=_fits_persistent(_LIVE["persistent"], streams=1),
                handles=_handles_rows(_LIVE["persistent"]),
            ),
            Variant(
                name="stream",
                summary="rows of any length streamed twice, statistics merged by lane",
                launch=_launch_stream,
                space=_STREAM_SPACE,
                default=_stream_default,
                fits=_fits_stream,
            ),
        ),
        peers={
            "torch": eager(_reference),
            "torch.compile": compiled(_reference),
            "liger": eager(_liger, requires="liger_kernel"),
        },
        bytes=_bytes("x out", "mean rstd", "weight bias"),
        flops=lambda c: {
            "mean": c["m"] * c["n"],
            "variance": 3 * c["m"] * c["n"],
            "normalize": c["m"] * c["n"],
            "weight, bias": 2 * c["m"] * c["n"],
        },
        reduction=lambda c: c["n"],
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_backward_reference,
        outputs=("dx", "dweight", "dbias"),
        variants=(
            Variant(
                name="rows",
                summary="rows and partial sums of dweight, dbias in registers, next rows prefetched",
                launch=_launch_backward_rows,
                space=_PERSISTENT_SPACE,
                default=_persistent_default(_LIVE["rows"], streams=2, block_m=4, warps_per_sm=8),
                fits=_fits_persistent(_LIVE["rows"], streams=2),
                handles=_handles_rows(_LIVE["rows"]),
            ),
            Variant(
                name="columns",
                summary="rows of any length read twice: their two sums, then tiles of columns",
                launch=_launch_backward_columns,
                space=_COLUMNS_SPACE,
                default=_columns_default,
                fits=_fits_columns,
            ),
        ),
        peers={
            "torch": gradients(_torch_forward, ("x", "weight", "bias")),
            "torch.compile": compiled_gradients(_torch_forward, ("x", "weight", "bias")),
            "liger": gradients(_liger_forward, ("x", "weight", "bias"), requires="liger_kernel"),
        },
        bytes=_bytes("x dy dx", "mean rstd", "weight dweight dbias"),
        flops=lambda c: {
            "xhat": 2 * c["m"] * c["n"],
            "g": c["m"] * c["n"],
            "row sums": 3 * c["m"] * c["n"],
            "dx": 4 * c["m"] * c["n"],
            "dweight, dbias": 3 * c["m"] * c["n"],
        },
        reduction=lambda c: max(c["m"], c["n"]),
    ),
)
