"""Linear layer with its epilogue in one kernel: y = act(scale * (x @ W^T) + bias) + residual.

x is [m, k], W [n, k], bias [n], residual and y [m, n]; act is relu, gelu (by erf, or by tanh), silu or nothing.  Sums,
activation and additions are fp32, rounded once to y's dtype.  Reads x, W, bias, residual and writes y: against a
product with operations after it that spares 2 MN elements of traffic for each of them, and a rounding.  2 M N K
floating-point operations; the epilogue's 10 to 30 an element are a few per cent of the product's unless K is small.

Backward, with z = scale * (x @ W^T) + bias and g = dy act'(z):

    dx = scale g @ W,    dW = scale g^T @ x,    dbias = sum_i g[i],    dresidual = dy

One pass reads z and dy and writes scale * g and, for strips of rows, the sums that become dbias, always in one order;
the products are those of `matmul`.  z is written by the forward pass as a second output where a gradient is wanted and
act is not relu without a residual, whose y says as much.

Variants: `tiled` reads through pointers and runs everywhere; `descriptor` lets the copy engine (TMA) move blocks;
`persistent` has one program an SM, which loads blocks of its next tile while it finishes one, in parts; `specialized`
(Gluon, kernels/hopper) has a warp that only loads, and two groups of warps that share a tile, one behind the other;
`alternating` gives each group tiles of its own, so that one multiplies while the other is at its epilogue; `swizzled`
(Gluon, too) is for fp32, which FMA multiplies.
"""

import functools
import math

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    Capability,
    Declaration,
    Pass,
    Peer,
    Variant,
    case,
    choose,
    compiled,
    compiled_gradients,
    eager,
    gpu_of,
    gradients,
    max_autotuned,
    torch_dtype,
)
from atlas.declaration.products import as_interpreted, describable, fp32_precision, precision_of
from atlas.operators import (
    CustomOperator,
    Differentiable,
    autocast,
    autocast_rule,
    autocasting,
    derivative_wanted,
    launch,
    torch_gradients,
)
from triton.tools.tensor_descriptor import TensorDescriptor

import kernels.activation
from kernels._matmul_epilogue_cases import (
    _ACTIVATIONS,
    _DTYPES,
    _EDGE_CASES,
    _HUGE_CASES,
    _LARGEST,
    _NAMES,
    _backward_bytes,
    _backward_flops,
    _backward_inputs,
    _backward_reference,
    _bytes,
    _call,
    _cases,
    _flops,
    _inputs,
    _prepare_cublaslt,
    _pulled_back,
    _reference,
    _tuned_by_torch,
)
from kernels._matmul_epilogue_spaces import (
    _ALTERNATING_SPACE,
    _PERSISTENT_SPACE,
    _PULL_SPACE,
    _SPACE,
    _SPECIALIZED_SPACE,
    _default,
    _default_alternating,
    _default_persistent,
    _default_pull,
    _default_specialized,
    _describes,
    _fits,
    _fits_persistent,
    _fits_pull,
    _fits_specialized,
    _persists,
    _specializes,
)
from kernels._matmul_swizzled import swizzled
from kernels.matmul import _all_describable, _grouped, matmul

__all__ = ["linear"]

_share, _share_and_slope = kernels.activation._share, kernels.activation._share_and_slope


@triton.jit
def _activated(z, ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr):
    """act(z) in fp32; ``ACCURATE`` asks for more digits than 16 bits hold."""
    if ACTIVATION == "relu":
        z = tl.where(z < 0, 0.0, z)  # NaN stays NaN, as in torch
    elif ACTIVATION != "none":
        z *= _share(z, ACTIVATION, ACCURATE)
    return z


@triton.jit
def _pulled(dy, z, ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr):
    """dy act'(z) in fp32."""
    if ACTIVATION == "relu":
        g = tl.where(z <= 0, 0.0, dy)  # 0 whatever dy is, NaN where z is, as in torch
    else:
        _, slope = _share_and_slope(z, ACTIVATION, ACCURATE)
        g = dy * slope
    return g


@triton.jit
def _tiled_kernel(
    x_ptr, w_ptr, bias_ptr, residual_ptr, y_ptr, z_ptr, scale, M, N, K, stride_xm, stride_xk, stride_wn, stride_wk,
    ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program owns one tile of y (and of z, where there is one); bias, residual, z may be None."""
    tl.assume(K > 0)  # see ``_tiled_kernel`` in kernels/matmul.py
    tile_m, tile_n = _grouped(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    # Rows past M and N wrap around to valid ones: the loop needs no mask for them, and they are not stored.
    offs_m = ((tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M).to(tl.int64)
    offs_n = ((tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + offs_m[:, None] * stride_xm + offs_k.to(tl.int64)[None, :] * stride_xk
    w_ptrs = w_ptr + offs_n[None, :] * stride_wn + offs_k.to(tl.int64)[:, None] * stride_wk
    block_k = tl.full((), BLOCK_K, tl.int64)  # a stride of 16 M elements times BLOCK_K = 128 passes 2^31
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            x = tl.load(x_ptrs)
            w = tl.load(w_ptrs)
        else:  # 0 past K: adds nothing to the sum
            x = tl.load(x_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
            w = tl.load(w_ptrs, mask=offs_k[:, None] < K - k, other=0.0)
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
        x_ptrs += block_k * stride_xk
        w_ptrs += block_k * stride_wk
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    offs = offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    z = acc * scale
    if bias_ptr is not None:
        z += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
    if z_ptr is not None:
        tl.store(z_ptr + offs, z.to(z_ptr.dtype.element_ty), mask=inside)
    y = _activated(z, ACTIVATION, ACCURATE)
    if residual_ptr is not None:
        y += tl.load(residual_ptr + offs, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + offs, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _multiply_blocks(
    x_desc, w_desc, m, n, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The fp32 accumulator of the tile whose first element is (m, n); what lies outside x and W is read as 0."""
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        acc = tl.dot(x_desc.load([m, k]), w_desc.load([n, k]).T, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _finish(
    acc, bias_ptr, residual_desc, y_desc, z_desc, scale, m, n, N,
    ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The epilogue of a block of the accumulator, COLUMNS wide, whose first element is (m, n) of y."""
    z = acc * scale
    if bias_ptr is not None:
        offs_n = n + tl.arange(0, COLUMNS)
        z += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
    if z_desc is not None:
        z_desc.store([m, n], z.to(z_desc.dtype))
    y = _activated(z, ACTIVATION, ACCURATE)
    if residual_desc is not None:
        y += residual_desc.load([m, n]).to(tl.float32)
    y_desc.store([m, n], y.to(y_desc.dtype))


@triton.jit
def _descriptor_kernel(
    x_desc, w_desc, bias_ptr, residual_desc, y_desc, z_desc, scale, M, N, K,
    ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program owns one tile of y, as in ``_tiled_kernel``; the copy engine moves whole blocks."""
    tl.assume(K > 0)  # see ``_tiled_kernel`` in kernels/matmul.py
    tile_m, tile_n = _grouped(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
    acc = _multiply_blocks(x_desc, w_desc, m, n, K, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION)
    _finish(acc, bias_ptr, residual_desc, y_desc, z_desc, scale, m, n, N, ACTIVATION, ACCURATE, BLOCK_N)


@triton.jit
def _halves(block, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The left and the right half of a block."""
    return tl.split(tl.permute(tl.reshape(block, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))


@triton.jit
def _persistent_kernel(
    x_desc, w_desc, bias_ptr, residual_desc, y_desc, z_desc, scale, M, N, K,
    ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, PARTS: tl.constexpr, PROGRAMS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A program takes every PROGRAMS-th tile; its loops are one, so blocks of the next tile load during an epilogue.

    The epilogue goes through the accumulator in PARTS, so that what it stores takes less of the shared memory.
    """
    finished = (
        tl.program_id(0) - PROGRAMS
    )  # counted apart: the epilogue's tile then hangs on nothing that is prefetched
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for position in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        tile_m, tile_n = _grouped(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        acc = _multiply_blocks(
            x_desc, w_desc, tile_m * BLOCK_M, tile_n * BLOCK_N, K, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION
        )
        finished += PROGRAMS
        tile_m, tile_n = _grouped(finished, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        if PARTS == 1:
            _finish(acc, bias_ptr, residual_desc, y_desc, z_desc, scale, m, n, N, ACTIVATION, ACCURATE, BLOCK_N)
        else:
            left, right = _halves(acc, BLOCK_M, BLOCK_N)
            half: tl.constexpr = BLOCK_N // 2
            _finish(left, bias_ptr, residual_desc, y_desc, z_desc, scale, m, n, N, ACTIVATION, ACCURATE, half)
            _finish(right, bias_ptr, residual_desc, y_desc, z_desc, scale, m, n + half, N, ACTIVATION, ACCURATE, half)


@triton.jit
def _pull_kernel(
    z_ptr, dy_ptr, g_ptr, sums_ptr, scale, M, N,
    ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr, ROWS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_N columns of a strip of ROWS rows: scale * dy act'(z), and sums of its columns."""
    N = N // WIDTH * WIDTH  # n is a multiple of WIDTH; so said, the compiler accesses WIDTH elements at once
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    strip = tl.program_id(1)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, ROWS, BLOCK_M):
        offs_m = strip * ROWS + start + tl.arange(0, BLOCK_M)
        inside = (offs_m[:, None] < M) & (offs_n[None, :] < N)
        offs = offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
        g = tl.load(dy_ptr + offs, mask=inside, other=0.0).to(tl.float32)  # 0 adds nothing to the sums
        if ACTIVATION != "none":
            # What is not there has a finite slope, and times 0 it is 0.
            z = tl.load(z_ptr + offs, mask=inside, other=0.0).to(tl.float32)
            g = _pulled(g, z, ACTIVATION, ACCURATE)
        if g_ptr is not None:
            tl.store(g_ptr + offs, (g * scale).to(g_ptr.dtype.element_ty), mask=inside)
        total += g
    if sums_ptr is not None:
        sums = tl.sum(total, axis=0)
        tl.store(sums_ptr + strip.to(tl.int64) * N + offs_n, sums, mask=offs_n < N)


@triton.jit
def _sum_kernel(sums_ptr, dbias_ptr, strips, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """One program owns BLOCK_N columns: dbias from the sums [strips, n] of the strips."""
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, strips, BLOCK_M):
        offs_m = start + tl.arange(0, BLOCK_M)
        inside = (offs_m[:, None] < strips) & (offs_n[None, :] < N)
        total += tl.load(sums_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :], mask=inside, other=0.0)
    tl.store(dbias_ptr + offs_n, tl.sum(total, axis=0).to(dbias_ptr.dtype.element_ty), mask=offs_n < N)


def _outputs(x, weight, out_dtype, keep):
    """(y, z or None) for the tiles to be written to."""
    shape, dtype = (x.shape[0], weight.shape[0]), out_dtype or x.dtype
    y = torch.empty(shape, dtype=dtype, device=x.device)
    return y, torch.empty(shape, dtype=dtype, device=x.device) if keep else None


def _launch_tiled(
    x, weight, bias=None, residual=None, activation="none", scale=1.0, out_dtype=None, keep=False, *, config
):  # fmt: skip
    """y [m, n], and with ``keep`` (y, z); operands are read in whatever strides they have."""
    (m, k), n = x.shape, weight.shape[0]
    y, z = _outputs(x, weight, out_dtype, keep)
    x, weight = as_interpreted(x), as_interpreted(weight)
    launch(
        _tiled_kernel, (triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]),),
        x, weight, bias, residual, y, z, scale, m, n, k, *x.stride(), *weight.stride(),
        ACTIVATION=activation, ACCURATE=_accurate(y), BLOCK_M=config["BLOCK_M"], BLOCK_N=config["BLOCK_N"],
        BLOCK_K=config["BLOCK_K"], GROUP_M=config["GROUP_M"], EVEN_K=k % config["BLOCK_K"] == 0,
        PRECISION=fp32_precision(), num_warps=config["num_warps"], num_stages=config["num_stages"],
    )  # fmt: skip
    return (y, z) if keep else y


def _launch_blocks(
    kernel, x, weight, bias=None, residual=None, activation="none", scale=1.0, out_dtype=None, keep=False, *, config
):  # fmt: skip
    """The same by a kernel that takes descriptors; operands that none can describe are read through pointers."""
    (m, k), n = x.shape, weight.shape[0]
    y, z = _outputs(x, weight, out_dtype, keep)
    if not _transfers(x, weight, y, residual):
        return _launch_tiled(x, weight, bias, residual, activation, scale, out_dtype, keep, config=config)
    x, weight = as_interpreted(x), as_interpreted(weight)
    rows, columns, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    tiles = triton.cdiv(m, rows) * triton.cdiv(n, columns)
    programs = min(tiles, gpu_of(x.device).sms) if "PARTS" in config else tiles
    of_y = [rows, columns // config.get("PARTS", 1)]
    launch(
        kernel, (programs,),
        TensorDescriptor.from_tensor(x, [rows, block_k]), TensorDescriptor.from_tensor(weight, [columns, block_k]),
        bias, _described(residual, of_y), _described(y, of_y), _described(z, of_y), scale, m, n, k,
        ACTIVATION=activation, ACCURATE=_accurate(y), PRECISION=fp32_precision(), **config,
        **({"PROGRAMS": programs} if "PARTS" in config else {}),
    )  # fmt: skip
    return (y, z) if keep else y


def _launch_specialized(
    alternate, x, weight, bias=None, residual=None, activation="none", scale=1.0, out_dtype=None, keep=False, *, config
):  # fmt: skip
    """The same by warps of two kinds; what does not fit it goes through pointers: fp32 results, mixed dtypes."""
    import kernels.hopper.matmul_epilogue as hopper

    y, z = _outputs(x, weight, out_dtype, keep)
    if x.dtype == torch.float32 or not _transfers(x, weight, y, residual):
        plain = dict(zip(_SPACE, (128, config["BLOCK_N"], 64, config["GROUP_M"], 8, 3), strict=True))
        return _launch_tiled(x, weight, bias, residual, activation, scale, out_dtype, keep, config=plain)
    hopper.specialized(
        x, weight, bias, residual, y, z, activation, scale,
        config=config, programs=gpu_of(x.device).sms, alternate=alternate,
    )  # fmt: skip
    return (y, z) if keep else y


def _launch_swizzled(
    x, weight, bias=None, residual=None, activation="none", scale=1.0, out_dtype=None, keep=False, *, config
):  # fmt: skip
    """The same of fp32 by FMA in Gluon; operands that no descriptor can describe are read through pointers."""
    import kernels.hopper.matmul_fp32 as hopper

    if x.dtype != torch.float32 or not _all_describable(x, weight):
        plain = dict(zip(_SPACE, (64, 64, 16, config["GROUP_M"], 4, 2), strict=True))
        return _launch_tiled(x, weight, bias, residual, activation, scale, out_dtype, keep, config=plain)
    y, z = _outputs(x, weight, out_dtype, keep)
    hopper.product(
        x, weight.t(), y, bias=bias, residual=residual, z=z, activation=activation, scale=scale, config=config
    )  # fmt: skip
    return (y, z) if keep else y


def _described(matrix, block):
    return None if matrix is None else TensorDescriptor.from_tensor(matrix, block)


def _launch_pull(z, dy, activation, scale, has_bias, like, *, config):
    """(g, dbias) of ``like``'s dtype; either has one element, of no meaning, where there is none.

    There is no g where it would be dy itself, and no dbias without a bias.
    """
    m, n = dy.shape
    writes = activation != "none" or scale != 1.0
    g = torch.empty((m, n) if writes else (1,), dtype=like.dtype, device=dy.device)
    dbias = torch.empty((n,) if has_bias else (1,), dtype=like.dtype, device=dy.device)
    strips = triton.cdiv(m, config["ROWS"])
    sums = torch.empty((strips, n), dtype=torch.float32, device=dy.device) if has_bias else None
    width = 16 // dy.element_size()
    columns = triton.cdiv(n, config["BLOCK_N"])
    launch(
        _pull_kernel, (columns, strips), z, dy, g if writes else None, sums, scale, m, n,
        ACTIVATION=activation, ACCURATE=_accurate(dy), WIDTH=1 if n % width else width, **config,
    )  # fmt: skip
    if has_bias:
        launch(_sum_kernel, (triton.cdiv(n, 64),), sums, dbias, strips, n, BLOCK_M=32, BLOCK_N=64, num_warps=4)
    return g, dbias


def _launch_backward(x, weight, bias, residual, z, dy, activation, scale, *, config):
    """(dx, dweight), and dbias where there is a bias; ``z`` as forward keeps it."""
    has_bias, g = bias is not None, dy
    if activation != "none" or scale != 1.0 or has_bias:
        g, dbias = _launch_pull(z, dy, activation, scale, has_bias, x, config=config)
        g = dy if g.dim() == 1 else g
    dx, dweight = matmul(g, weight), matmul(g.t(), x)
    return (dx, dweight, dbias) if has_bias else (dx, dweight)


def _accurate(y):
    return y.dtype == torch.float32


def _transfers(x, weight, y, residual):
    """Whether the copy engine can move all of them; blocks of one dtype, as room in shared memory is planned for."""
    matrices = (x, weight, y, y if residual is None else residual)
    return all(matrix.dtype == x.dtype and describable(matrix) for matrix in matrices)


def _case_of(x, weight, bias, residual, activation):
    dtype = "tf32" if x.dtype == torch.float32 and fp32_precision() == "tf32" else _NAMES[x.dtype]
    return case(
        dtype, activation=activation, bias=bias is not None, residual=residual is not None,
        m=x.shape[0], n=weight.shape[0], k=x.shape[1],
    )  # fmt: skip


def _run(x, weight, bias, residual, activation, scale, out, keep=False):
    variant, config = choose(DECLARATION, "forward", _case_of(x, weight, bias, residual, activation), x.device)
    return variant.launch(x, weight, bias, residual, activation, scale, torch_dtype(out), keep, config=config)


def _fake(x, weight, bias, residual, activation, scale, out):
    return x.new_empty((x.shape[0], weight.shape[0]), dtype=torch_dtype(out))


def _run_pull(z, dy, x, weight, activation, scale, has_bias):
    problem = _case_of(x, weight, weight if has_bias else None, None, activation)
    _, config = choose(DECLARATION, "backward", problem, dy.device)
    return _launch_pull(z, dy, activation, scale, has_bias, x, config=config)


def _fake_pull(z, dy, x, weight, activation, scale, has_bias):
    g = x.new_empty(dy.shape if activation != "none" or scale != 1.0 else (1,))
    return g, x.new_empty((dy.shape[1],) if has_bias else (1,))


def _setup(ctx, inputs, output):
    """Save the inputs and what tells act': z where it was kept, else y."""
    x, weight, bias, residual, ctx.activation, ctx.scale, _ = inputs
    kept = None
    if isinstance(output, tuple):
        kept = output[1]
        ctx.mark_non_differentiable(kept)
    elif ctx.activation != "none":
        kept = output
    ctx.save_for_backward(x, weight, bias, residual, kept)


def _pull_back(ctx, dy, _=None):
    """Gradients of the operator's seven arguments."""
    x, weight, bias, residual, kept = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        return _differentiable_backward(x, weight, bias, residual, ctx.activation, ctx.scale, dy)
    activation, scale, has_bias = ctx.activation, ctx.scale, ctx.needs_input_grad[2]
    g, dbias = dy.to(x.dtype), None
    if activation != "none" or scale != 1.0 or has_bias:
        found, dbias = _pull(kept, dy.contiguous(), x, weight, activation, scale, has_bias)
        g = g if found.dim() == 1 else found
    dx = matmul(g, weight) if ctx.needs_input_grad[0] else None
    dweight = matmul(g.t(), x) if ctx.needs_input_grad[1] else None
    dresidual = dy.to(residual.dtype) if ctx.needs_input_grad[3] else None
    return dx, dweight, dbias if has_bias else None, dresidual, None, None, None


def _differentiable_backward(x, weight, bias, residual, activation, scale, dy):
    def y(*tensors):
        return _reference(*tensors, activation, scale).to(dy.dtype)

    return *torch_gradients(y, (x, weight, bias, residual), dy), None, None, None


_SCHEMA = "(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, str activation, float scale, str out)"
_linear = Differentiable(
    CustomOperator("linear", f"{_SCHEMA} -> Tensor", run=_run, fake=_fake, state=precision_of), _setup, _pull_back
)
_kept_linear = Differentiable(
    CustomOperator(
        "linear_kept",
        f"{_SCHEMA} -> (Tensor, Tensor)",
        run=functools.partial(_run, keep=True),
        fake=lambda *arguments: (_fake(*arguments), _fake(*arguments)),
        state=precision_of,
    ),
    _setup,
    _pull_back,
)
_pull = CustomOperator(
    "linear_pull",
    "(Tensor? z, Tensor dy, Tensor x, Tensor weight, str activation, float scale, bool has_bias) -> (Tensor, Tensor)",
    run=_run_pull,
    fake=_fake_pull,
)


def linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    scale: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``act(scale * F.linear(input, weight) + bias) + residual``, rounded once, as ``out_dtype`` (input's, if None).

    ``input`` is [..., k], ``weight`` [n, k], ``bias`` [n], ``residual`` [..., n] as the result; ``activation`` is one
    of "relu", "gelu" (by erf), "gelu_tanh", "silu", or None.  Dtypes are fp32, fp16, bf16; those of input and weight
    are one, bias and residual may have another of them.  Input and weight are read in their strides, residual and bias
    copied if not contiguous.  fp32 operands are multiplied as ``torch.set_float32_matmul_precision`` says.

    Differentiable in the four tensors; second derivatives go through torch's operations.  Raises TypeError for other
    dtypes, ValueError for another activation, shapes or devices that do not fit, and sizes of 2^31 - 1024 or more.
    """
    if activation is None:
        activation = "none"
    if activation not in _ACTIVATIONS:
        raise ValueError(f"linear: activation is None or one of {', '.join(_ACTIVATIONS[1:])}: {activation!r}")
    if autocasting():
        input, weight, bias = autocast("linear", input, weight, bias)
        if residual is not None and out_dtype is None and autocast_rule("linear", input.device):
            out_dtype = torch.promote_types(input.dtype, residual.dtype)  # as torch adds what it does not cast
    if input.dtype not in _NAMES or weight.dtype != input.dtype:
        raise TypeError(f"linear takes input and weight of one dtype out of {', '.join(_DTYPES)}: "
                        f"{input.dtype}, {weight.dtype}")  # fmt: skip
    if not input.dim() or weight.dim() != 2 or weight.shape[1] != input.shape[-1]:
        raise ValueError(f"linear takes a weight [n, k] for an input [..., k]: "
                         f"{tuple(weight.shape)} for {tuple(input.shape)}")  # fmt: skip
    if weight.device != input.device:
        raise ValueError(f"linear takes tensors of one device: {input.device}, {weight.device}")
    shape, rows = (*input.shape[:-1], weight.shape[0]), math.prod(input.shape[:-1])
    if bias is not None:
        bias = _checked("bias", bias, shape[-1:], input)
    if residual is not None:
        residual = _checked("residual", residual, shape, input).reshape(rows, shape[-1])
    out = _NAMES.get(out_dtype or input.dtype)
    if out is None:
        raise TypeError(f"linear takes an out_dtype out of {', '.join(_DTYPES)}: {out_dtype}")
    x = input if input.dim() == 2 else input.reshape(rows, input.shape[-1])
    if max(*x.shape, shape[-1]) > _LARGEST:
        raise ValueError(f"linear takes sizes up to {_LARGEST}: {tuple(input.shape)}, {tuple(weight.shape)}")
    if not (x.numel() and shape[-1]):  # nothing to launch for
        y = _reference(x, weight, bias, residual, activation, scale).to(torch_dtype(out))
    elif _keeps(activation, residual) and derivative_wanted(x, weight, bias, residual):
        y = _kept_linear(x, weight, bias, residual, activation, scale, out)[0]
    else:
        y = _linear(x, weight, bias, residual, activation, scale, out)
    return y if input.dim() == 2 else y.view(shape)


def _keeps(activation, residual):
    """Whether backward needs z: y says whether z was positive, which is all that relu needs."""
    return activation != "none" and (activation != "relu" or residual is not None)


def _checked(name, tensor, shape, input):
    """The tensor, contiguous, if it has this shape, a dtype of the kernel's and the input's device."""
    if tensor.dtype not in _NAMES:
        raise TypeError(f"linear takes a {name} of {', '.join(_DTYPES)}: {tensor.dtype}")
    if tensor.shape != shape or tensor.device != input.device:
        raise ValueError(
            f"linear takes a {name} of shape {tuple(shape)} on {input.device}: {tuple(tensor.shape)} on {tensor.device}"
        )
    return tensor.contiguous()


DECLARATION = Declaration(
    name="matmul_epilogue",
    family="matmul",
    summary="y = act(x W^T + bias) + residual",
    function=linear,
    call=_call,
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("x", "weight", "bias"),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("y",),
        variants=(
            Variant(
                name="persistent",
                summary="one program an SM: the next tile's blocks load while one is finished",
                follows="descriptor",
                launch=functools.partial(_launch_blocks, _persistent_kernel),
                space=_PERSISTENT_SPACE,
                default=_default_persistent,
                fits=_fits_persistent,
                handles=_persists,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
            ),
            Variant(
                name="alternating",
                summary="Gluon: the groups have tiles of their own, and one multiplies while the other finishes",
                follows="specialized",
                launch=functools.partial(_launch_specialized, True),
                space=_ALTERNATING_SPACE,
                default=_default_alternating,
                fits=functools.partial(_fits_specialized, alternate=True),
                handles=_specializes,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
            ),
            Variant(
                name="specialized",
                summary="Gluon: a warp loads, two groups of warps multiply and finish half a tile each on their own",
                follows="persistent",
                launch=functools.partial(_launch_specialized, False),
                space=_SPECIALIZED_SPACE,
                default=_default_specialized,
                fits=_fits_specialized,
                handles=_specializes,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
            ),
            swizzled(_launch_swizzled, row_lengths=lambda c: (c["k"],)),
            Variant(
                name="tiled",
                summary="pipelined tiles in an order that shares rows and columns in L2; the epilogue from registers",
                launch=_launch_tiled,
                space=_SPACE,
                default=_default,
                fits=_fits,
            ),
            Variant(
                name="descriptor",
                summary="the tiles of `tiled`, moved by the copy engine (TMA) through descriptors",
                follows="tiled",
                launch=functools.partial(_launch_blocks, _descriptor_kernel),
                space=_SPACE,
                default=_default,
                fits=_fits,
                handles=_describes,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
            ),
        ),
        peers={
            "torch": eager(_reference),
            "torch.compile": compiled(_reference),
            "torch.compile max-autotune": max_autotuned(_reference, cases=_tuned_by_torch),
            "cublaslt": Peer(_prepare_cublaslt),
        },
        bytes=_bytes,
        flops=_flops,
        reduction=lambda c: c["k"],
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_backward_reference,
        outputs=("dx", "dweight", "dbias"),
        variants=(
            Variant(
                name="pull",
                summary="act' and the bias' gradient in one pass over dy, then matmul's products",
                launch=_launch_backward,
                space=_PULL_SPACE,
                default=_default_pull,
                fits=_fits_pull,
            ),
        ),
        peers={
            "torch": _pulled_back(gradients, compiles=False),
            "torch.compile": _pulled_back(compiled_gradients, compiles=True),
        },
        bytes=_backward_bytes,
        flops=_backward_flops,
        reduction=lambda c: max(c["m"], c["n"]),
    ),
)
