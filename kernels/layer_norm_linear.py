"""Layer normalisation, then a linear layer: y = ((x - mean) * rstd * weight + bias) @ W^T + c, in one product.

x[m, k] has a mean and rstd per row; W[n, k] and c[n] are the linear layer's.  A first kernel reads x and writes mean
(in two parts) and rstd, 3 M; a product then normalises each tile of x on its way to ``tl.dot``.  Against the two layers
one after the other this spares writing and reading the normalised matrix, 2 MK elements, and costs the normalisation of
a tile once for each tile of columns of y.  2 M N K floating-point operations.

Why not y = rstd * (x @ (weight * W)^T - mean * colsum) + …, a product of x as it is?  Because it subtracts two large
numbers where the mean of a row is large against its deviation: 16-bit products of x lose the digits that the centred
values keep, and weight * W would be rounded once more.  Tiles of centred values, rounded to the dtype as the layer
itself would round them, give what the two layers give.

Variants: `fused` as above; `separate` writes the normalised matrix and leaves the product to torch (cuBLAS): the better
way where a product is large, so that its speed is worth more than the traffic.  The backward pass is two plain
products of torch's around kernels of layer_norm and reduction; the normalised matrix is computed again, not kept.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    GPU,
    Case,
    Config,
    Declaration,
    Pass,
    Variant,
    case,
    compiled,
    eager,
    edge_cases,
    element_size,
    gpu_of,
    max_autotuned,
    normal,
    rows,
    sweep,
)
from atlas.declaration.products import uses_tensor_cores
from atlas.operators import (
    Differentiable,
    Operator,
    autocast_rule,
    autocasting,
    contiguous,
    launch,
    step,
    torch_gradients,
)

import kernels.matmul_epilogue  # registers linear_few_rows
import kernels.reduction  # registers reduction_sum
from kernels.common.norms import checked, in_one_dtype, parameter
from kernels.layer_norm.forward import launch_one_pass
from kernels.layer_norm.spaces import fits_one_pass
from kernels.matmul_epilogue.spaces import many_rows


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


@triton.jit
def _fused_kernel(
    x_ptr, weight_ptr, bias_ptr, mean_ptr, rest_ptr, rstd_ptr, w_ptr, c_ptr, y_ptr, M, N, K,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_C: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr, OPERAND: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """One program owns a tile of y, BLOCK_M x BLOCK_N; it goes down GROUP_M rows of tiles before the next column.

    A tile of x is normalised in fp32 and rounded to OPERAND, the dtype of the product's factors.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_of_group = GROUP_M * tl.cdiv(N, BLOCK_N)
    first_m = tl.program_id(0) // tiles_of_group * GROUP_M
    height = min(tiles_m - first_m, GROUP_M)
    within = tl.program_id(0) % tiles_of_group
    tile_m, tile_n = first_m + within % height, within // height
    # Rows past M and columns past N wrap around to valid ones: the loop needs no mask for them; they are not stored.
    offs_m = ((tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M).to(tl.int64)
    offs_n = ((tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    mean, rest = tl.load(mean_ptr + offs_m)[:, None], tl.load(rest_ptr + offs_m)[:, None]
    rstd = tl.load(rstd_ptr + offs_m)[:, None]
    x_ptrs = x_ptr + offs_m[:, None] * K + offs_k[None, :]
    w_ptrs = w_ptr + offs_n[None, :] * K + offs_k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, K, BLOCK_K, num_stages=NUM_STAGES):
        inside = offs_k < K - k
        if EVEN_K:
            x, w = tl.load(x_ptrs), tl.load(w_ptrs)
        else:  # w is 0 past K, and so is what it adds to the sum
            x = tl.load(x_ptrs, mask=inside[None, :], other=0.0)
            w = tl.load(w_ptrs, mask=inside[:, None], other=0.0)
        a = (x.to(tl.float32) - mean - rest) * rstd
        if HAS_WEIGHT:
            a *= tl.load(weight_ptr + k + offs_k, mask=inside, other=0.0).to(tl.float32)[None, :]
        if HAS_BIAS:
            a += tl.load(bias_ptr + k + offs_k, mask=inside, other=0.0).to(tl.float32)[None, :]
        acc = tl.dot(a.to(x.dtype).to(OPERAND), w.to(OPERAND), acc, input_precision=PRECISION)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    if HAS_C:
        acc += tl.load(c_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
    y_ptrs = y_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


def _launch_normalize(x, weight, bias, out, eps, num_warps=None):
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


def _launch_fused(x, weight, bias, eps, w, c=None, *, config):
    (m, k), n = x.shape, w.shape[0]
    mean, rest, rstd = _launch_normalize(x, weight, bias, None, eps)
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    # The interpreter's tl.dot multiplies the bit patterns of bf16 (triton#11584, closed as unsupported; so in 3.7.1).
    as_fp32 = x.dtype == torch.float32 or (x.device.type == "cpu" and x.dtype == torch.bfloat16)
    sixteen = tl.bfloat16 if x.dtype == torch.bfloat16 else tl.float16
    launch(
        _fused_kernel, (triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]),),
        x, weight, bias, mean, rest, rstd, w, c, y, m, n, k,
        HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None, HAS_C=c is not None,
        BLOCK_M=config["BLOCK_M"], BLOCK_N=config["BLOCK_N"], BLOCK_K=config["BLOCK_K"], GROUP_M=config["GROUP_M"],
        EVEN_K=k % config["BLOCK_K"] == 0, PRECISION="ieee", OPERAND=tl.float32 if as_fp32 else sixteen,
        NUM_STAGES=config["num_stages"], num_warps=config["num_warps"],
    )  # fmt: skip
    return y


def _launch_separate(x, weight, bias, eps, w, c=None, *, config):
    if x.shape[1] <= _LONGEST:
        out = launch_one_pass(x, weight, bias, eps, config={"LATE": False} | config, rest=True)[0]
    else:
        out = torch.empty_like(x)
        _launch_normalize(x, weight, bias, out, eps, config["num_warps"])
    return torch.nn.functional.linear(out, w, c)


_LONGEST = 8192
"""Rows up to here are held in registers by `separate`."""

_LARGEST = 2**31 - 1025
"""Row, column and k offsets are 32-bit in the kernels and may pass the size by one tile."""


def _reference(x, weight, bias, eps, w, c):
    return torch.nn.functional.linear(torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps), w, c)


_EPS = 1e-5
"""torch's default, in all cases."""


def _inputs(problem: Case, device, generator):
    m, n, k = problem["m"], problem["n"], problem["k"]
    draw = normal(problem, device, generator)
    return {"x": draw(m, k), "weight": draw(k), "bias": draw(k), "eps": _EPS, "w": draw(n, k), "c": draw(n)}


def _bytes(problem: Case) -> dict[str, float]:
    m, n, k = problem["m"], problem["n"], problem["k"]
    size = element_size(problem.dtype)
    return {"x": m * k * size, "weight, bias": 2 * k * size, "w": n * k * size, "c": n * size, "y": m * n * size}


_cases = sweep(
    "m n k",
    {
        "bf16": (
            (128, 1024, 1024),  # the launch is the cost
            (16, 12288, 4096),  # 16 tokens: reads W and little else
            (4096, 3072, 1024),  # queries, keys and values of a model 1024 wide
            (8192, 1024, 4096),  # few columns: x is read for them alone
            (4096, 12288, 4096),  # queries, keys and values of a model 4096 wide
            (4096, 11008, 4096),  # its feed-forward layer
            (8192, 5120, 5120),
        ),
        "fp16": ((4096, 3072, 1024), (4096, 12288, 4096)),
        "fp32": ((4096, 3072, 1024),),
    },
    tensors=1,
    elements=lambda c: sum(_bytes(c).values()) / element_size(c.dtype),
)

_EDGE_CASES = edge_cases(
    "m n k",
    (
        (1, 1, 1, "one element of each: rstd is 1 / sqrt(eps)"),
        (128, 64, 64, "whole tiles only"),
        (70, 64, 64, "a tail in m"),
        (64, 70, 64, "a tail in n"),
        (33, 65, 129, "tails everywhere, strides that allow no wide loads"),
        (48, 40, 7, "k smaller than any block of it"),
        (1, 96, 136, "a single row"),
    ),
)

_HUGE_CASES = (case("bf16", "offsets into x beyond 2^31", m=2**18 + 1, n=16, k=8192),)


def _narrow(problem: Case) -> bool:
    """Whether rows of x and W are not aligned for wide loads, so that the loop is not pipelined."""
    return bool(problem["k"] % 16)


_LARGE_TILES = 3 * (128 + 128) * 64 * 2
"""Bytes of shared memory that three stages of 128 x 128 tiles take."""


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    block_m, block_n, block_k, warps = (config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps"))
    shared = config["num_stages"] * (block_m + block_n) * block_k * element_size(problem.dtype)
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    if block_m >= max(32, 2 * problem["m"]) or block_n >= max(64, 2 * problem["n"]):
        return "a tile twice as large as y"
    tiles = triton.cdiv(problem["m"], block_m) * triton.cdiv(problem["n"], block_n)
    if block_m * block_n > 2048 and 4 * tiles < gpu.sms:
        return f"{tiles} tiles leave most of {gpu.sms} SMs idle"
    roomy = uses_tensor_cores(problem, gpu) and gpu.shared_bytes >= _LARGE_TILES
    if roomy and block_m * block_n < 128 * 128 and tiles > 8 * gpu.sms:
        return f"{tiles} tiles, where fewer and larger ones reach every SM"
    accumulators, normalised = block_m * block_n // (32 * warps), block_m * block_k // (32 * warps)
    if uses_tensor_cores(problem, gpu) and not _narrow(problem):
        if (block_m < 64 < problem["m"] and tiles > gpu.sms) or config["num_stages"] == 2:
            return "each tile of x is normalised for too few products, or too little is under way"
        if not 4 <= accumulators <= 128 or normalised > 64 or block_k < 64:
            return f"{accumulators} accumulators and {normalised} elements of x a thread"
        return ""
    most = 64 if problem.dtype == "fp32" else 32
    if not (4 if block_m == 16 else 16) <= accumulators <= most or block_k > 32 or config["num_stages"] > 2:
        return f"{accumulators} accumulators a thread, {block_k} columns: registers spill, or too little work a warp"
    return ""


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    block_m = max(16, min(128, triton.next_power_of_2(problem["m"])))
    if not uses_tensor_cores(problem, gpu) or _narrow(problem):
        tile = (min(64, block_m), 32, 16, 8, 4, 2)
    elif problem["m"] * problem["n"] < gpu.sms * 64 * 64:
        tile = (min(32, block_m), 64, 64, 8, 4, 3)
    elif problem["m"] * problem["n"] < gpu.sms * 128 * 128 or gpu.shared_bytes < _LARGE_TILES:
        tile = (min(64, block_m), 64, 64, 8, 4, 3)
    else:
        tile = (block_m, 128, 64, 8, 8 if block_m == 128 else 4, 3)
    return dict(zip(_SPACE, tile, strict=True))


_SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64, 128),
    "GROUP_M": (8,),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
}

_SEPARATE_SPACE = {"BLOCK_M": (1, 2), "num_warps": (1, 2, 4, 8)}


def _fits_separate(config: Config, problem: Case, gpu: GPU) -> str:
    rows_of_x = case(problem.dtype, m=problem["m"], n=problem["k"])
    if problem["k"] > _LONGEST:
        return "long rows are streamed one by one" if config["BLOCK_M"] > 1 or config["num_warps"] < 4 else ""
    elements = config["BLOCK_M"] * problem["k"] // (32 * config["num_warps"])
    if elements < 8 and config["num_warps"] > 1:
        return f"{elements} elements a thread: fewer warps do"
    return fits_one_pass({"LATE": False} | config, rows_of_x, gpu)


def _separate_default(problem: Case, gpu: GPU) -> Config:
    """About 16 elements a thread, one row a program."""
    warps = max(1, min(8, triton.next_power_of_2(problem["k"]) // 512))
    configs = [{"BLOCK_M": 1, "num_warps": warps}, {"BLOCK_M": 1, "num_warps": 8}, {"BLOCK_M": 1, "num_warps": 1}]
    return next((config for config in configs if not _fits_separate(config, problem, gpu)), configs[-1])


_MAX_AUTOTUNED = (case("bf16", m=128, n=1024, k=1024), case("bf16", m=4096, n=3072, k=1024))

DECLARATION = Declaration(
    name="layer_norm_linear",
    family="matmul",
    summary="y = layer_norm(x) W^T + c",
    call=lambda function, inputs: function(
        inputs["x"], inputs["w"], inputs["c"], inputs["weight"], inputs["bias"], inputs["eps"]
    ),
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("x", "weight", "bias", "w", "c"),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("y",),
        variants=(
            Variant(
                name="separate",
                summary="a kernel that writes the normalised matrix, then torch's product (cuBLAS)",
                launch=_launch_separate,
                space=_SEPARATE_SPACE,
                default=_separate_default,
                fits=_fits_separate,
            ),
            Variant(
                name="fused",
                summary="statistics of rows first, then a product that normalises each tile of x",
                launch=_launch_fused,
                space=_SPACE,
                default=_default,
                fits=_fits,
            ),
        ),
        peers={
            "torch": eager(_reference),
            "torch.compile": compiled(_reference),
            "torch.compile max-autotune": max_autotuned(_reference, cases=lambda c: c in _MAX_AUTOTUNED),
        },
        bytes=_bytes,
        flops=lambda c: {
            "statistics": 4 * c["m"] * c["k"],
            "normalize": 4 * c["m"] * c["k"],
            "product": 2 * c["m"] * c["n"] * c["k"],
        },
        reduction=lambda c: c["k"],
    ),
)


def _case_of(x, weight, bias, eps, w, c):
    n, k = w.shape
    return case(DECLARATION.dtype_of(x), m=x.numel() // k, n=n, k=k)


def _run(launch, x, weight, bias, eps, w, c):
    return launch(x.view(-1, w.shape[1]), weight, bias, eps, w, c).view(*x.shape[:-1], w.shape[0])


_forward = Operator(
    DECLARATION,
    "forward",
    "(Tensor x, Tensor? weight, Tensor? bias, float eps, Tensor w, Tensor? c) -> Tensor",
    name="layer_norm_linear",
    case_of=_case_of,
    run=_run,
    fake=lambda x, weight, bias, eps, w, c: x.new_empty((*x.shape[:-1], w.shape[0])),
)


def _setup(ctx, inputs, output):
    x, weight, bias, eps, w, c = inputs
    ctx.save_for_backward(x, weight, bias, w, c)
    ctx.eps = eps


def _pull_back(ctx, dy):
    """Two products of torch's around kernels of layer_norm, which normalise x again, and of reduction.

    Of few rows linear's kernel makes both products and the sum in one launch.  Keeping the normalised matrix would cost
    its memory.
    """
    x, weight, bias, w, c = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        return _differentiable_backward(x, weight, bias, ctx.eps, w, c, dy)
    (n, k), operators = w.shape, torch.ops.kernel_atlas  # which the kernels registered when they were imported
    out, mean, rstd = operators.layer_norm_forward(x, k, weight, bias, ctx.eps)
    rows_of_dy, out = contiguous(dy).view(-1, n), out.view(-1, k)
    dx = dweight = dbias = dout = dw = dc = None
    wants_dout, (wants_dw, wants_dc) = any(ctx.needs_input_grad[:3]), ctx.needs_input_grad[4:]
    if (wants_dout or wants_dw) and not many_rows(*out.shape, n, out.dtype, "none", gpu_of(out.device)):
        dout, dw, dc = operators.linear_few_rows(
            None, rows_of_dy, out, w, "none", 1.0, wants_dc, wants_dout, wants_dw
        )  # fmt: skip
    else:
        dout = step(torch.mm, rows_of_dy, w) if wants_dout else None
        dw = step(torch.mm, rows_of_dy.t(), out) if wants_dw else None
        dc = operators.reduction_sum(rows_of_dy, 0, 1, False, False, False) if wants_dc else None
    if wants_dout:
        dout = dout.view(x.shape)
        dx, dweight, dbias = operators.layer_norm_backward(x, k, weight, bias, mean, rstd, dout, None)
    dw, dc = dw if wants_dw else None, dc if wants_dc else None
    return dx, None if weight is None else dweight, None if bias is None else dbias, None, dw, dc


def _differentiable_backward(x, weight, bias, eps, w, c, dy):
    def y(x, weight, bias, w, c):
        wide, weight, bias = in_one_dtype(x, weight, bias)
        out = torch.nn.functional.layer_norm(wide, wide.shape[-1:], weight, bias, eps)
        return torch.nn.functional.linear(out.to(x.dtype), w, c)

    dx, dweight, dbias, dw, dc = torch_gradients(y, (x, weight, bias, w, c), dy)
    return dx, dweight, dbias, None, dw, dc


_layer_norm_linear = Differentiable(_forward, setup_context=_setup, backward=_pull_back)


@DECLARATION.public
def layer_norm_linear(
    input: torch.Tensor,
    linear_weight: torch.Tensor,
    linear_bias: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """``F.linear(F.layer_norm(input, (k,), weight, bias, eps), linear_weight, linear_bias)`` in fp32, fp16 or bf16.

    ``input`` is [..., k], ``linear_weight`` [n, k], ``linear_bias`` [n], all of one dtype, ``weight`` and ``bias`` [k]
    of any of these, on one device; biases and ``weight`` may be None.  Returns [..., n].  Statistics and sums are fp32;
    fp32 operands are multiplied in IEEE precision.  Inputs that are not contiguous are copied first.  Raises TypeError
    for another dtype and ValueError for shapes or devices that do not fit, and for sizes of 2^31 - 1024 or more.
    """
    if autocasting() and autocast_rule("linear", input.device):
        return _in_two_dtypes(input, linear_weight, linear_bias, weight, bias, eps)
    if (found := _layer_norm_linear.again(input, weight, bias, eps, linear_weight, linear_bias)) is not None:
        return found
    DECLARATION.dtype_of(input)
    if not input.dim() or linear_weight.dim() != 2 or linear_weight.shape[1] != input.shape[-1]:
        raise ValueError(
            "layer_norm_linear takes a linear_weight [n, k] for an input [..., k]: "
            f"{tuple(linear_weight.shape)} for {tuple(input.shape)}"
        )
    n, k = linear_weight.shape
    if max(n, k, input.numel() // max(k, 1)) > _LARGEST:
        raise ValueError(f"layer_norm_linear takes sizes up to {_LARGEST}: {tuple(input.shape)}, {n} x {k}")
    linear_weight = checked("layer_norm_linear", "linear_weight", linear_weight, (n, k), input)
    linear_bias = checked("layer_norm_linear", "linear_bias", linear_bias, (n,), input)
    weight = parameter("layer_norm_linear", "weight", weight, (k,), input)
    bias = parameter("layer_norm_linear", "bias", bias, (k,), input)
    if not input.numel() or not n:  # nothing to launch for
        wide, *parameters = in_one_dtype(input, weight, bias)
        out = torch.nn.functional.layer_norm(wide, wide.shape[-1:], *parameters, eps)
        return torch.nn.functional.linear(out.to(input.dtype), linear_weight, linear_bias)
    return _layer_norm_linear(input.contiguous(), weight, bias, eps, linear_weight, linear_bias)


def _in_two_dtypes(input, linear_weight, linear_bias, weight, bias, eps):
    """Under autocast torch normalises in fp32 and multiplies in 16 bits: two kernels, each with its own rule."""
    out = kernels.layer_norm(input, (input.shape[-1],), weight, bias, eps)
    return kernels.linear(out, linear_weight, linear_bias)
