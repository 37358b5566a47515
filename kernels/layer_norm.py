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
):  # fmt: skip
    """One program owns BLOCK_M rows; BLOCK_N >= n, so they stay in registers.

    Weight and bias are loaded last: a row of 2^15 leaves no registers for them before.
    """
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    mask_m, mask_n = offs_m < m, offs_n < n
    mask = mask_m[:, None] & mask_n
    # 0 is the identity of the sum; the padding is kept out of the variance by _normalize.
    x = tl.load(x_ptr + offs_m[:, None] * n + offs_n, mask=mask, other=0.0, eviction_policy="evict_first")
    out, mean, rstd = _normalize(x.to(tl.float32), mask_n, n, eps)
    tl.store(mean_ptr + offs_m, mean, mask=mask_m)
    tl.store(rstd_ptr + offs_m, rstd, mask=mask_m)
    if HAS_WEIGHT:
        out *= tl.load(weight_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)
    if HAS_BIAS:
        out += tl.load(bias_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs_m[:, None] * n + offs_n, out, mask=mask)


@triton.jit
def _persistent_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, rstd_ptr, m, n, eps,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """One program owns every `num_programs`-th block of BLOCK_M rows; it loads weight and bias once."""
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
    NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """One program owns one row of any length, in blocks of LANES x WIDTH elements.

    Each lane, WIDTH neighbours that one thread loads at once, keeps count, mean and squared deviations M2 of what it
    has seen and merges each block's into them (Chan, Golub, LeVeque 1979), so neither a large mean nor a drift along
    the row cancels.  The second sweep goes backwards: what was read last is in cache.
    """
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    count, mean, m2 = tl.zeros([LANES], tl.float32), tl.zeros([LANES], tl.float32), tl.zeros([LANES], tl.float32)
    for start in tl.range(0, n, LANES * WIDTH, num_stages=NUM_STAGES):
        offs_n = start + offs
        mask = offs_n < n
        x = tl.load(x_ptr + row * n + offs_n, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        added = tl.sum(mask.to(tl.float32), axis=1)
        block_mean = tl.sum(x, axis=1) / tl.maximum(added, 1.0)
        centred = tl.where(mask, x - block_mean[:, None], 0.0)
        delta = block_mean - mean
        share = added / tl.maximum(count + added, 1.0)
        m2 += tl.sum(centred * centred, axis=1) + delta * delta * count * share
        mean += delta * share
        count += added
    row_mean = tl.sum(count * mean, axis=0) / n
    between = mean - row_mean
    rstd = tl.rsqrt((tl.sum(m2 + count * between * between, axis=0) / n + eps).to(tl.float32))
    tl.store(mean_ptr + row, row_mean)
    tl.store(rstd_ptr + row, rstd)
    last = (n - 1) // (LANES * WIDTH) * (LANES * WIDTH)
    for done in tl.range(0, n, LANES * WIDTH, num_stages=NUM_STAGES):
        offs_n = last - done + offs
        mask = offs_n < n
        x = tl.load(x_ptr + row * n + offs_n, mask=mask, eviction_policy="evict_first").to(tl.float32)
        out = (x - row_mean) * rstd
        if HAS_WEIGHT:
            out *= tl.load(weight_ptr + offs_n, mask=mask).to(tl.float32)
        if HAS_BIAS:
            out += tl.load(bias_ptr + offs_n, mask=mask).to(tl.float32)
        tl.store(out_ptr + row * n + offs_n, out, mask=mask, eviction_policy="evict_first")


@triton.jit
def _backward_rows_kernel(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, dx_ptr, partial_ptr, m, n,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """One program owns every `num_programs`-th block of BLOCK_M rows: their dx, and one partial row of dweight, dbias.

    The partial rows stay in registers, one per row of the tile, until the last block; partial_ptr is
    [HAS_WEIGHT + HAS_BIAS, num_programs, n].
    """
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
        g = dy * weight.to(tl.float32) if HAS_WEIGHT else dy
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
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    mean, rstd = tl.load(mean_ptr + row), tl.load(rstd_ptr + row)
    along, level = tl.zeros([LANES], tl.float32), tl.zeros([LANES], tl.float32)
    for start in tl.range(0, n, LANES * WIDTH):
        offs_n = start + offs
        mask = offs_n < n
        x = tl.load(x_ptr + row * n + offs_n, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(dy_ptr + row * n + offs_n, mask=mask, other=0.0).to(tl.float32)
        if HAS_WEIGHT:
            g *= tl.load(weight_ptr + offs_n, mask=mask, other=0.0).to(tl.float32)
        along += tl.sum(g * (x - mean), axis=1)
        level += tl.sum(g, axis=1)
    tl.store(along_ptr + row, tl.sum(along, axis=0) * rstd / n)
    tl.store(level_ptr + row, tl.sum(level, axis=0) / n)


@triton.jit
def _backward_columns_kernel(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, along_ptr, level_ptr, dx_ptr, partial_ptr, m, n,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_N columns of every `num_programs(1)`-th block of BLOCK_M rows.

    The rows' sums are known, so it needs no other column; partial_ptr is [HAS_WEIGHT + HAS_BIAS, num_programs(1), n].
    """
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
        g = dy * weight if HAS_WEIGHT else dy
        tl.store(dx_ptr + offs, (g - xhat * along - level) * rstd, mask=mask)
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
    out = torch.empty_like(x)
    mean, rstd = torch.empty((2, x.shape[0]), dtype=torch.float32, device=x.device)
    return out, mean, rstd


def _flags(weight, bias):
    return {"HAS_WEIGHT": int(weight is not None), "HAS_BIAS": int(bias is not None)}


def _blocks(x, config):
    """Programs for blocks of BLOCK_M rows, at most PROGRAMS_PER_SM on each SM where the config says so."""
    blocks = triton.cdiv(x.shape[0], config["BLOCK_M"])
    return min(blocks, config["PROGRAMS_PER_SM"] * gpu_of(x.device).sms) if "PROGRAMS_PER_SM" in config else blocks


def _lanes(x, block_n):
    width = _VECTOR_BYTES // x.element_size()
    return {"LANES": block_n // width, "WIDTH": width}


def _launch_one_pass(x, weight, bias, eps, *, config):
    out, mean, rstd = _outputs(x)
    m, n = x.shape
    _one_pass_kernel[(_blocks(x, config),)](
        x, weight, bias, out, mean, rstd, m, n, eps, **_flags(weight, bias),
        BLOCK_M=config["BLOCK_M"], BLOCK_N=triton.next_power_of_2(n), num_warps=config["num_warps"],
    )  # fmt: skip
    return out, mean, rstd


def _launch_persistent(x, weight, bias, eps, *, config):
    out, mean, rstd = _outputs(x)
    m, n = x.shape
    _persistent_kernel[(_blocks(x, config),)](
        x, weight, bias, out, mean, rstd, m, n, eps, **_flags(weight, bias),
        BLOCK_M=config["BLOCK_M"], BLOCK_N=triton.next_power_of_2(n),
        NUM_STAGES=config["num_stages"], num_warps=config["num_warps"],
    )  # fmt: skip
    return out, mean, rstd


def _launch_stream(x, weight, bias, eps, *, config):
    out, mean, rstd = _outputs(x)
    m, n = x.shape
    _stream_kernel[(m,)](
        x, weight, bias, out, mean, rstd, n, eps, **_flags(weight, bias), **_lanes(x, config["BLOCK_N"]),
        NUM_STAGES=config["num_stages"], num_warps=config["num_warps"],
    )  # fmt: skip
    return out, mean, rstd


def _sum_partials(partial, weight, bias):
    """(dweight, dbias) from partial [HAS_WEIGHT + HAS_BIAS, p, n]; None for what the layer does not have."""
    gradients, p, n = partial.shape
    if not gradients:
        return None, None
    out = torch.empty((gradients, n), dtype=(bias if weight is None else weight).dtype, device=partial.device)
    # 32 floats are the 128 bytes of one cache line; 128 partial rows at a time are one sweep for as many programs.
    _sum_partials_kernel[(triton.cdiv(n, 32), gradients)](partial, out, p, n, BLOCK_P=128, BLOCK_N=32, num_warps=8)
    return out[0] if weight is not None else None, out[-1] if bias is not None else None


def _launch_backward_rows(x, weight, bias, mean, rstd, dy, *, config):
    m, n = x.shape
    programs, flags = _blocks(x, config), _flags(weight, bias)
    dx = torch.empty_like(x)
    partial = torch.empty((sum(flags.values()), programs, n), dtype=torch.float32, device=x.device)
    _backward_rows_kernel[(programs,)](
        x, weight, mean, rstd, dy, dx, partial, m, n, **flags,
        BLOCK_M=config["BLOCK_M"], BLOCK_N=triton.next_power_of_2(n),
        NUM_STAGES=config["num_stages"], num_warps=config["num_warps"],
    )  # fmt: skip
    return dx, *_sum_partials(partial, weight, bias)


def _launch_backward_columns(x, weight, bias, mean, rstd, dy, *, config):
    m, n = x.shape
    flags, block_n, dx = _flags(weight, bias), config["BLOCK_N"], torch.empty_like(x)
    along, level = torch.empty((2, m), dtype=torch.float32, device=x.device)
    _row_sums_kernel[(m,)](
        x, weight, mean, rstd, dy, along, level, n, HAS_WEIGHT=flags["HAS_WEIGHT"],
        **_lanes(x, _row_block(n, x.element_size())), num_warps=_ROW_WARPS,
    )  # fmt: skip
    columns = triton.cdiv(n, block_n)
    rows = triton.cdiv(config["PROGRAMS_PER_SM"] * gpu_of(x.device).sms, columns)
    programs = min(rows, triton.cdiv(m, config["BLOCK_M"]))
    partial = torch.empty((sum(flags.values()), programs, n), dtype=torch.float32, device=x.device)
    _backward_columns_kernel[(columns, programs)](
        x, weight, mean, rstd, dy, along, level, dx, partial, m, n, **flags,
        BLOCK_M=config["BLOCK_M"], BLOCK_N=block_n, num_warps=config["num_warps"],
    )  # fmt: skip
    return dx, *_sum_partials(partial, weight, bias)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        variant, config = choose(DECLARATION, "forward", _case_of(x), x.device)
        out, mean, rstd = variant.launch(x, weight, bias, eps, config=config)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        x, weight, bias, mean, rstd = ctx.saved_tensors
        variant, config = choose(DECLARATION, "backward", _case_of(x), x.device)
        return *variant.launch(x, weight, bias, mean, rstd, dy.contiguous(), config=config), None


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
    dtype and device, or are None.  An input that is not contiguous is copied first.  Differentiable once.  Raises
    TypeError for another dtype and ValueError for shapes or devices that do not fit.
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
        (300, 8, "more rows than programs: each owns several and adds them up"),
    )
)


_VECTOR_BYTES = 16
"""The widest access of one thread; narrower ones spend more instructions on the same bytes."""

_REGISTERS = 65_536
"""32-bit registers of one SM, on every GPU from sm_75 to sm_100: what all its programs share."""

_THREAD_REGISTERS = 255
"""The most that one thread can have."""

_OTHER_REGISTERS = 24
"""What a thread needs besides its elements: addresses, masks, counters (ptxas of Triton 3.7, sm_75 to sm_90)."""

_ENOUGH_IN_FLIGHT = 8192
"""Bytes of a tile: four programs of an SM with one each in flight cover memory's latency on an H200 (about 4.3 TB/s
x 0.7 us / 132 SMs = 23 KB an SM)."""

_LIVE = {"one_pass": 1.0, "persistent": 2.8, "rows": 6.5}
"""Registers for each element of a tile, by ptxas: the row; row, weight and bias; row, dy, xhat, g, weight and both
sums."""

_ROW_WARPS = 8
"""Warps of a program that sums a row: as many rows at once as fill an SM eight times, few threads to wait for."""


def _block_n(problem: Case) -> int:
    return triton.next_power_of_2(problem["n"])


def _row_block(n: int, size: int) -> int:
    """Elements of a block of :func:`_row_sums_kernel`: two 16-byte vectors a thread, or the row."""
    return max(32, min(2 * 32 * _ROW_WARPS * _VECTOR_BYTES // size, triton.next_power_of_2(n)))


def _registers(config: dict, problem: Case, live: float) -> float:
    """Registers a thread needs to hold ``live`` fp32 values of each element of its tile."""
    return config["BLOCK_M"] * _block_n(problem) * live / (32 * config["num_warps"]) + _OTHER_REGISTERS


def _fits_rows(config: dict, problem: Case, gpu: GPU, live: float) -> str:
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


def _fits_pipeline(config: dict, problem: Case, gpu: GPU, live: float, streams: int) -> str:
    tile, threads = config["BLOCK_M"] * _block_n(problem) * element_size(problem.dtype), 32 * config["num_warps"]
    programs = config["PROGRAMS_PER_SM"]
    if config["BLOCK_M"] > 1 and tile * streams > 2 * _ENOUGH_IN_FLIGHT:
        return f"tiles of {tile} bytes: more rows at a time bring no more bytes into flight than memory can use"
    prefetched = (config["num_stages"] - 1) * tile * streams
    if prefetched > gpu.shared_bytes or prefetched * programs > gpu.shared_bytes_per_sm:
        return f"{programs} programs with {prefetched} bytes prefetched exceed an SM's shared memory"
    registers = programs * threads * _registers(config, problem, live)
    if programs * config["num_warps"] > gpu.warps_per_sm or registers > _REGISTERS:
        return f"{programs} programs of {threads} threads exceed an SM's warps or registers"
    return _fits_rows(config, problem, gpu, live)


def _fits_stream(config: dict, problem: Case, gpu: GPU) -> str:
    threads = 32 * config["num_warps"]
    vectors = config["BLOCK_N"] * element_size(problem.dtype) / (threads * _VECTOR_BYTES)
    if not 1 <= vectors <= 4:
        return f"{vectors:g} 16-byte vectors a thread; 1 to 4 keep memory busy without spills"
    if config["BLOCK_N"] > max(_block_n(problem), _STREAM_BLOCKS[0]):
        return "a block longer than the row"
    # The second sweep prefetches x, weight and bias.
    prefetched = 3 * (config["num_stages"] - 1) * config["BLOCK_N"] * element_size(problem.dtype)
    return f"{prefetched} bytes prefetched exceed the shared memory" if prefetched > gpu.shared_bytes else ""


def _fits_columns(config: dict, problem: Case, gpu: GPU) -> str:
    elements = config["BLOCK_M"] * config["BLOCK_N"] / (32 * config["num_warps"])
    if not 8 <= elements <= 16:
        return f"{elements:g} elements a thread; 8 to 16 keep memory busy without spills"
    if config["BLOCK_N"] > max(_block_n(problem), _COLUMN_BLOCKS[0]):
        return "a block wider than the matrix"
    return ""


def _handles_rows(live: float):
    def handles(problem: Case, gpu: GPU) -> str:
        # The widest row is one of a power of two that some number of threads holds without a spill.
        widest = max(
            32 * warps * (1 << int((min(_THREAD_REGISTERS, 2048 // warps) - _OTHER_REGISTERS) / live).bit_length() - 1)
            for warps in (1, 2, 4, 8, 16, 32)
        )
        return f"rows of {problem['n']} elements; {widest} fit one program's registers" if problem["n"] > widest else ""

    return handles


def _one_pass_default(problem: Case, gpu: GPU) -> dict:
    """Two 16-byte vectors a thread, four for rows that would need more than 16 warps so; short rows share 4 warps."""
    row = _block_n(problem) * element_size(problem.dtype)
    block_m = max(1, min(16, triton.next_power_of_2(problem["m"]), 4 * 32 * 2 * _VECTOR_BYTES // row))
    vectors = block_m * row // (32 * _VECTOR_BYTES)
    return {"BLOCK_M": block_m, "num_warps": min(32, max(1, vectors // (2 if vectors <= 32 else 4)))}


def _persistent_default(problem: Case, gpu: GPU) -> dict:
    return _one_pass_default(problem, gpu) | {"num_stages": 2, "PROGRAMS_PER_SM": 1}


def _stream_default(problem: Case, gpu: GPU) -> dict:
    """Two 16-byte vectors a thread of the 16 warps that a long row gets, fewer warps for a short one."""
    size = element_size(problem.dtype)
    block_n = min(2 * 16 * 32 * _VECTOR_BYTES // size, max(_block_n(problem), _STREAM_BLOCKS[0]))
    return {"BLOCK_N": block_n, "num_warps": max(4, block_n * size // (2 * 32 * _VECTOR_BYTES)), "num_stages": 1}


def _backward_rows_default(problem: Case, gpu: GPU) -> dict:
    """16 elements a thread, which leave registers for 16 warps an SM; the next block is prefetched."""
    block_m = max(1, min(4, triton.next_power_of_2(problem["m"]), 2048 // _block_n(problem)))
    num_warps = min(16, max(1, block_m * _block_n(problem) // (32 * 16)))
    return {"BLOCK_M": block_m, "num_warps": num_warps, "num_stages": 2, "PROGRAMS_PER_SM": max(1, 8 // num_warps)}


def _columns_default(problem: Case, gpu: GPU) -> dict:
    return {"BLOCK_M": 4, "BLOCK_N": _COLUMN_BLOCKS[0], "num_warps": 4, "PROGRAMS_PER_SM": 8}


_STREAM_BLOCKS = (2048, 4096, 8192, 16384)
_COLUMN_BLOCKS = (256, 512, 1024)
_ROWS_SPACE = {"BLOCK_M": (1, 2, 4, 8, 16), "num_warps": (1, 2, 4, 8, 16, 32)}
_PIPELINE_SPACE = _ROWS_SPACE | {"num_stages": (2, 3), "PROGRAMS_PER_SM": (1, 2, 4)}
_BACKWARD_ROWS_SPACE = {
    "BLOCK_M": (1, 2, 4),
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 2, 3),
    "PROGRAMS_PER_SM": (1, 2, 4, 8),
}
_STREAM_SPACE = {"BLOCK_N": _STREAM_BLOCKS, "num_warps": (4, 8, 16, 32), "num_stages": (1, 2)}
_COLUMNS_SPACE = {
    "BLOCK_M": (1, 2, 4, 8),
    "BLOCK_N": _COLUMN_BLOCKS,
    "num_warps": (4, 8),
    "PROGRAMS_PER_SM": (2, 4, 8),
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
                fits=lambda config, problem, gpu: _fits_rows(config, problem, gpu, _LIVE["one_pass"]),
                handles=_handles_rows(_LIVE["one_pass"]),
            ),
            Variant(
                name="persistent",
                summary="rows, weight and bias in registers, as many programs as fit the SMs, next rows prefetched",
                launch=_launch_persistent,
                space=_PIPELINE_SPACE,
                default=_persistent_default,
                fits=lambda config, problem, gpu: _fits_pipeline(config, problem, gpu, _LIVE["persistent"], 1),
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
                space=_BACKWARD_ROWS_SPACE,
                default=_backward_rows_default,
                fits=lambda config, problem, gpu: _fits_pipeline(config, problem, gpu, _LIVE["rows"], 2),
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
