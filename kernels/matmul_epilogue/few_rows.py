"""`few_rows`: all gradients of a layer of few rows in one launch, whatever its rows are aligned to.

Where rows are few, launches cost more than products: these read W once and write dW once.  So some programs own tiles
of dW and others tiles of dx, and each computes act' of what it needs of dy again.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration.products import as_interpreted
from atlas.operators import launch

from kernels.common.parts import sum_parts
from kernels.matmul.thin import width_of

from .pull import pulled
from .tiled import accurate


@triton.jit
def _gradient(z_ptr, dy_ptr, offs_m, offs_n, M, end, N, ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr):
    """dy act'(z) of rows ``offs_m`` and columns ``offs_n`` in fp32; 0 from row M and from column ``end`` on."""
    inside = (offs_m[:, None] < M) & (offs_n[None, :] < end)
    offs = offs_m[:, None] * N + offs_n[None, :]
    g = tl.load(dy_ptr + offs, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION != "none":
        # What is not there has a finite slope, and times 0 it is 0.
        z = tl.load(z_ptr + offs, mask=inside, other=0.0).to(tl.float32)
        g = pulled(g, z, ACTIVATION, ACCURATE)
    return g


@triton.jit
def _write_dx(
    z_ptr, dy_ptr, w_ptr, dx_ptr, scale, program, M, N, K, N_PART, ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr,
    ROWS: tl.constexpr, STEP_N: tl.constexpr, STEP_K: tl.constexpr,
):  # fmt: skip
    """STEP_K columns of dx[part, M, K], the sum over N_PART of N."""
    tiles = tl.cdiv(K, STEP_K)
    part = program // tiles
    offs_m = tl.arange(0, ROWS)
    offs_k = program % tiles * STEP_K + tl.arange(0, STEP_K)
    end = tl.minimum((part + 1) * N_PART, N)
    acc = tl.zeros((ROWS, STEP_K), tl.float32)
    for n in range(part * N_PART, end, STEP_N):
        offs_n = n + tl.arange(0, STEP_N)
        g = _gradient(z_ptr, dy_ptr, offs_m, offs_n, M, end, N, ACTIVATION, ACCURATE) * scale
        inside = (offs_n[:, None] < end) & (offs_k[None, :] < K)
        w = tl.load(w_ptr + offs_n[:, None] * K + offs_k[None, :], mask=inside, other=0.0)
        acc = tl.dot(g.to(w.dtype), w, acc, input_precision="ieee")
    dx_ptrs = dx_ptr + part * M * K + offs_m[:, None] * K + offs_k[None, :]
    tl.store(dx_ptrs, acc.to(dx_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_k[None, :] < K))


@triton.jit
def _write_dw(
    z_ptr, dy_ptr, x_ptr, dw_ptr, dbias_ptr, scale, program, M, N, K, ACTIVATION: tl.constexpr,
    ACCURATE: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of dW, and of dbias where it is one of the first column; either may be None."""
    tiles = 1
    if dw_ptr is not None:
        tiles = tl.cdiv(K, BLOCK_K)
    offs_m = tl.arange(0, ROWS)
    offs_n = program // tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = program % tiles * BLOCK_K + tl.arange(0, BLOCK_K)
    g = _gradient(z_ptr, dy_ptr, offs_m, offs_n, M, N, N, ACTIVATION, ACCURATE)
    if dbias_ptr is not None:  # noqa: SIM102 (settled when compiled, unlike the other)
        if program % tiles == 0:
            dbias = tl.sum(g, axis=0)
            tl.store(dbias_ptr + offs_n, dbias.to(dbias_ptr.dtype.element_ty), mask=offs_n < N)
    if dw_ptr is not None:
        inside = (offs_m[:, None] < M) & (offs_k[None, :] < K)
        x = tl.load(x_ptr + offs_m[:, None] * K + offs_k[None, :], mask=inside, other=0.0)
        dw = tl.dot(tl.trans(g * scale).to(x.dtype), x, input_precision="ieee")
        dw_ptrs = dw_ptr + offs_n[:, None] * K + offs_k[None, :]
        tl.store(dw_ptrs, dw.to(dw_ptr.dtype.element_ty), mask=(offs_n[:, None] < N) & (offs_k[None, :] < K))


@triton.jit
def _few_rows_kernel(
    z_ptr, dy_ptr, x_ptr, w_ptr, dx_ptr, dw_ptr, dbias_ptr, scale, M, N, K, N_PART, of_dx,
    ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr, WIDTH_N: tl.constexpr, WIDTH_K: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STEP_N: tl.constexpr, STEP_K: tl.constexpr,
):  # fmt: skip
    """The first ``of_dx`` programs own columns of dx, which take longest, the others tiles of dW.

    All M rows are in a block of ROWS.  WIDTH_N and WIDTH_K divide N and K: so said, the compiler accesses that many
    elements at once, and copies asynchronously from 4 bytes on.
    """
    N = N // WIDTH_N * WIDTH_N
    K = K // WIDTH_K * WIDTH_K
    program = tl.program_id(0)
    if program < of_dx:
        _write_dx(
            z_ptr, dy_ptr, w_ptr, dx_ptr, scale, program, M, N, K, N_PART, ACTIVATION, ACCURATE, ROWS, STEP_N,
            STEP_K,
        )  # fmt: skip
    else:
        _write_dw(
            z_ptr, dy_ptr, x_ptr, dw_ptr, dbias_ptr, scale, program - of_dx, M, N, K, ACTIVATION, ACCURATE, ROWS,
            BLOCK_N, BLOCK_K,
        )  # fmt: skip


def launch_gradients(z, dy, x, weight, activation, scale, has_bias, wants_dx=True, wants_dw=True, *, config):
    """(dx, dweight, dbias) of ``x``'s dtype; what is not wanted has one element, of no meaning.

    fp32 is multiplied as it is, also where tf32 is allowed.
    """
    (m, k), n = x.shape, weight.shape[0]

    def empty(wanted, *shape):
        return torch.empty(shape if wanted else (1,), dtype=x.dtype, device=x.device)

    dx, dweight, dbias = empty(wants_dx, m, k), empty(wants_dw, n, k), empty(has_bias, n)
    part = triton.cdiv(triton.cdiv(n, config["STEP_N"]), config["SPLITS"]) * config["STEP_N"]
    count = triton.cdiv(n, part)
    parts = dx if count == 1 else torch.empty((count, m, k) if wants_dx else (1,), dtype=torch.float32, device=x.device)
    of_dx = triton.cdiv(k, config["STEP_K"]) * count if wants_dx else 0
    of_dw = (triton.cdiv(k, config["BLOCK_K"]) if wants_dw else has_bias) * triton.cdiv(n, config["BLOCK_N"])
    x, weight = as_interpreted(x.contiguous()), as_interpreted(weight.contiguous())
    launch(
        _few_rows_kernel, (of_dx + of_dw,), z, dy, x, weight, parts,
        dweight if wants_dw else None, dbias if has_bias else None,
        scale, m, n, k, part, of_dx, ACTIVATION=activation, ACCURATE=accurate(dy),
        WIDTH_N=width_of(n, dy), WIDTH_K=width_of(k, x), ROWS=max(16, triton.next_power_of_2(m)),
        **{name: value for name, value in config.items() if name != "SPLITS"},
    )  # fmt: skip
    if wants_dx and count > 1:
        sum_parts(parts, dx)
    return dx, dweight, dbias


def launch_few_rows(x, weight, bias, residual, z, dy, activation, scale, *, config):
    """(dx, dweight), and dbias where there is a bias; ``z`` as forward keeps it."""
    has_bias = bias is not None
    found = launch_gradients(z, dy, x, weight, activation, scale, has_bias, config=config)
    return found if has_bias else found[:2]
