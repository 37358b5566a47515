"""Activations: gelu(x) = x Phi(x), silu(x) = x sigmoid(x), and swiglu(gate, up) = silu(gate) * up.

Phi is the normal distribution, Phi(x) = (1 + erf(x / sqrt 2)) / 2; gelu's "tanh" form is x sigmoid(2 u) with
u = sqrt(2 / pi) (x + 0.044715 x^3), since 1 + tanh u = 2 sigmoid(2 u).  With f' the derivative, backward is

    dx = dy f'(x),    dgate = dy up silu'(gate),  dup = dy silu(gate)

Forward reads x (gate, up) and writes out: 2 N bytes of elements, 3 N for swiglu.  Backward reads dy too and writes a
gradient for each input: 3 N and 5 N; f is computed again, never stored.  Memory bounds all of them if the arithmetic
stays below some thirty instructions an element (16-bit, H200); so 16-bit gelu has a Phi of its own.  Arithmetic is
fp32 whatever the dtype, rounded once.

Variants: `flat` takes whole tensors as vectors; `rows` takes rows that lie apart, above all gate and up as the two
halves of one tensor of 2 n columns.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    GPU,
    Case,
    Declaration,
    Pass,
    Peer,
    Variant,
    case,
    choose,
    compiled,
    compiled_gradients,
    eager,
    element_size,
    gradients,
    torch_dtype,
)
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import CustomOperator, Differentiable, launch

__all__ = ["gelu", "silu", "swiglu"]

LOG2E = tl.constexpr(1.4426950408889634)
SQRT_HALF = tl.constexpr(0.7071067811865476)
TANH_SCALE = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)
INV_SQRT_2PI = tl.constexpr(0.3989422804014327)
CUBIC = tl.constexpr(0.044715)


@triton.jit
def _phi(x, EXACT: tl.constexpr):
    """(Phi(x), exp(-x^2 / 2)) in fp32.

    erf takes 35 instructions an element, more than 16-bit gelu has time for on an H200.  Without EXACT the tail is
    exp(-z^2 / 2) G(z) for z = |x|, with G a polynomial of degree 9 about 3 (minimax fit, relative error 5e-5 up to
    z = 4, a tenth of fp16's rounding, and 2e-3 at 6, where x Phi(x) is below fp16's least number): 20 instructions.
    Beyond 6 G stays what it is there: closer than 1 + erf, which is 0 from x = -5.6 on.
    """
    density = tl.exp2(x * x * (-0.5 * LOG2E))
    if EXACT:
        phi = 0.5 + 0.5 * tl.erf(x * SQRT_HALF)
    else:
        z = tl.minimum(tl.abs(x), 6.0) - 3.0
        g = 2.877676251955563e-06 + z * -8.44791657073074e-07
        g = 9.194158110403805e-07 + z * g
        g = 1.6601548850303516e-05 + z * g
        g = -0.0001593693159520626 + z * g
        g = 0.0005884808488190174 + z * g
        g = -0.0022616125643253326 + z * g
        g = 0.009126696735620499 + z * g
        g = -0.03441919758915901 + z * g
        g = 0.12151846289634705 + z * g
        phi = tl.where(x > 0, 1.0 - density * g, density * g)
    return phi, density


@triton.jit
def _share(x, KIND: tl.constexpr, EXACT: tl.constexpr):
    """The share of x that passes, f(x) / x, in fp32."""
    if KIND == "gelu":
        share, _ = _phi(x, EXACT)
    elif KIND == "gelu_tanh":
        share = tl.sigmoid(x * (1 + x * x * CUBIC) * TANH_SCALE)
    else:
        share = tl.sigmoid(x)
    return share


@triton.jit
def _share_and_slope(x, KIND: tl.constexpr, EXACT: tl.constexpr):
    """f(x) / x and f'(x), in fp32."""
    if KIND == "gelu":
        share, density = _phi(x, EXACT)
        slope = share + x * density * INV_SQRT_2PI
    else:
        inner, growth = x, x  # the sigmoid's argument, and x times its derivative
        if KIND == "gelu_tanh":
            inner = x * (1 + x * x * CUBIC) * TANH_SCALE
            growth = x * (1 + x * x * (3 * CUBIC)) * TANH_SCALE
        share = tl.sigmoid(inner)
        # 1 - share cancels where share is nearly 1: too little for 16 bits to see.
        rest = tl.sigmoid(-inner) if EXACT else 1.0 - share
        slope = share + growth * share * rest
    return share, slope


@triton.jit
def _forward_tile(x_ptrs, up_ptrs, out_ptrs, mask, KIND: tl.constexpr, MASKED: tl.constexpr):
    """Load, compute, store one tile; ``up_ptrs`` is None for what has no second factor."""
    mask = mask if MASKED else None
    x = tl.load(x_ptrs, mask=mask)
    if up_ptrs is not None:
        up = tl.load(up_ptrs, mask=mask).to(tl.float32)
    y = x.to(tl.float32) * _share(x.to(tl.float32), KIND, x.dtype == tl.float32)
    if up_ptrs is not None:
        y *= up
    tl.store(out_ptrs, y, mask=mask)


@triton.jit
def _backward_tile(
    x_ptrs, up_ptrs, dy_ptrs, dx_ptrs, dup_ptrs, mask, KIND: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """The same for the gradients."""
    mask = mask if MASKED else None
    x = tl.load(x_ptrs, mask=mask)
    dy = tl.load(dy_ptrs, mask=mask).to(tl.float32)
    if up_ptrs is not None:
        up = tl.load(up_ptrs, mask=mask).to(tl.float32)
    share, slope = _share_and_slope(x.to(tl.float32), KIND, x.dtype == tl.float32)
    if up_ptrs is not None:
        tl.store(dup_ptrs, dy * (x.to(tl.float32) * share), mask=mask)
        dy *= up
    tl.store(dx_ptrs, dy * slope, mask=mask)


@triton.jit
def _flat_kernel(x_ptr, up_ptr, out_ptr, n_elements, KIND: tl.constexpr, GATED: tl.constexpr, BLOCK: tl.constexpr):
    """One program owns BLOCK consecutive elements; all but the last one need no mask, so any length is read in vectors.

    ``up_ptr`` is read only if GATED.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offs = tl.arange(0, BLOCK)
    x_ptrs, out_ptrs = x_ptr + start + offs, out_ptr + start + offs
    up_ptrs = up_ptr + start + offs if GATED else None
    if start + BLOCK <= n_elements:
        _forward_tile(x_ptrs, up_ptrs, out_ptrs, None, KIND, False)
    else:
        _forward_tile(x_ptrs, up_ptrs, out_ptrs, offs < n_elements - start, KIND, True)


@triton.jit
def _flat_backward_kernel(
    x_ptr, up_ptr, dy_ptr, dx_ptr, dup_ptr, n_elements,
    KIND: tl.constexpr, GATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK consecutive elements, as in _flat_kernel; ``up_ptr``, ``dup_ptr`` only if GATED."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offs = tl.arange(0, BLOCK)
    x_ptrs, dy_ptrs, dx_ptrs = x_ptr + start + offs, dy_ptr + start + offs, dx_ptr + start + offs
    up_ptrs = up_ptr + start + offs if GATED else None
    dup_ptrs = dup_ptr + start + offs if GATED else None
    if start + BLOCK <= n_elements:
        _backward_tile(x_ptrs, up_ptrs, dy_ptrs, dx_ptrs, dup_ptrs, None, KIND, False)
    else:
        _backward_tile(x_ptrs, up_ptrs, dy_ptrs, dx_ptrs, dup_ptrs, offs < n_elements - start, KIND, True)


@triton.jit
def _tile_of(m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(rows [BLOCK_M, 1] of 64 bits, columns [1, BLOCK_N], mask, whether it is not needed) of this program's tile.

    Tiles are counted along the rows first, so those in flight at one time lie side by side in memory.
    """
    across = tl.cdiv(n, BLOCK_N)
    first_m, first_n = tl.program_id(0) // across * BLOCK_M, tl.program_id(0) % across * BLOCK_N
    offs_m = first_m + tl.arange(0, BLOCK_M)[:, None]
    offs_n = first_n + tl.arange(0, BLOCK_N)[None, :]
    full = (first_m + BLOCK_M <= m) & (first_n + BLOCK_N <= n)
    return offs_m.to(tl.int64), offs_n, (offs_m < m) & (offs_n < n), full


@triton.jit
def _rows_kernel(
    x_ptr, up_ptr, out_ptr, m, n, stride_xm, stride_um,
    KIND: tl.constexpr, GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns a tile of BLOCK_M x BLOCK_N; rows of out lie one after the other."""
    n = n // WIDTH * WIDTH  # all are multiples of WIDTH; so said, the compiler accesses WIDTH elements at once
    stride_xm, stride_um = stride_xm // WIDTH * WIDTH, stride_um // WIDTH * WIDTH
    offs_m, offs_n, mask, full = _tile_of(m, n, BLOCK_M, BLOCK_N)
    x_ptrs, out_ptrs = x_ptr + offs_m * stride_xm + offs_n, out_ptr + offs_m * n + offs_n
    up_ptrs = up_ptr + offs_m * stride_um + offs_n if GATED else None
    if full:
        _forward_tile(x_ptrs, up_ptrs, out_ptrs, None, KIND, False)
    else:
        _forward_tile(x_ptrs, up_ptrs, out_ptrs, mask, KIND, True)


@triton.jit
def _rows_backward_kernel(
    x_ptr, up_ptr, dy_ptr, dx_ptr, dup_ptr, m, n, stride_xm, stride_um, stride_dm,
    KIND: tl.constexpr, GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns a tile of BLOCK_M x BLOCK_N; rows of dy lie one after the other, of both gradients apart."""
    n = n // WIDTH * WIDTH  # as in _rows_kernel
    stride_xm, stride_um, stride_dm = (
        stride_xm // WIDTH * WIDTH, stride_um // WIDTH * WIDTH, stride_dm // WIDTH * WIDTH,
    )  # fmt: skip
    offs_m, offs_n, mask, full = _tile_of(m, n, BLOCK_M, BLOCK_N)
    x_ptrs, dy_ptrs = x_ptr + offs_m * stride_xm + offs_n, dy_ptr + offs_m * n + offs_n
    dx_ptrs = dx_ptr + offs_m * stride_dm + offs_n
    up_ptrs = up_ptr + offs_m * stride_um + offs_n if GATED else None
    dup_ptrs = dup_ptr + offs_m * stride_dm + offs_n if GATED else None
    if full:
        _backward_tile(x_ptrs, up_ptrs, dy_ptrs, dx_ptrs, dup_ptrs, None, KIND, False)
    else:
        _backward_tile(x_ptrs, up_ptrs, dy_ptrs, dx_ptrs, dup_ptrs, mask, KIND, True)


def _empty(x):
    """An output of the shape of ``x``, contiguous whatever ``x`` is."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _launch_flat(x, up, kind, *, config):
    out, n = _empty(x), x.numel()
    if n:
        launch(
            _flat_kernel, (triton.cdiv(n, config["BLOCK"]),), x, up, out, n,
            KIND=kind, GATED=up is not None, BLOCK=config["BLOCK"], num_warps=config["num_warps"],
        )  # fmt: skip
    return out


def _launch_flat_backward(x, up, dy, kind, *, config):
    dx, dup, n = _empty(x), None if up is None else _empty(up), x.numel()
    if n:
        launch(
            _flat_backward_kernel, (triton.cdiv(n, config["BLOCK"]),), x, up, dy, dx, dup, n,
            KIND=kind, GATED=up is not None, BLOCK=config["BLOCK"], num_warps=config["num_warps"],
        )  # fmt: skip
    return dx if up is None else (dx, dup)


def _launch_rows(x, up, kind, *, config):
    out = torch.empty((*x.shape[:-1], _columns(x, up, kind)), dtype=x.dtype, device=x.device)
    if out.numel():
        x, up = _factors(x, up, kind)
        m, n = x.shape
        blocks, grid = _blocks(m, n, config)
        stride_um = 0 if up is None else up.stride(0)
        width = _width(x, n, x.stride(0), stride_um)
        launch(
            _rows_kernel, grid, x, up, out, m, n, x.stride(0), stride_um,
            KIND=kind, GATED=up is not None, **blocks, WIDTH=width, num_warps=config["num_warps"],
        )  # fmt: skip
    return out


def _launch_rows_backward(x, up, dy, kind, *, config):
    dx, dup = _empty(x), None if up is None else _empty(up)
    if x.numel():
        dx_rows, dup_rows = _factors(dx, dup, kind)
        x_rows, up_rows = _factors(x, up, kind)
        m, n = x_rows.shape
        blocks, grid = _blocks(m, n, config)
        stride_um = 0 if up_rows is None else up_rows.stride(0)
        width = _width(x, n, x_rows.stride(0), stride_um, dx_rows.stride(0))
        launch(
            _rows_backward_kernel, grid, x_rows, up_rows, dy, dx_rows, dup_rows,
            m, n, x_rows.stride(0), stride_um, dx_rows.stride(0),
            KIND=kind, GATED=up_rows is not None, **blocks, WIDTH=width, num_warps=config["num_warps"],
        )  # fmt: skip
    return dx if up is None else (dx, dup)


def _columns(x, up, kind):
    """Columns of the output: half of those of ``x`` where it holds both factors."""
    return x.shape[-1] // 2 if kind == "swiglu" and up is None else x.shape[-1]


def _factors(x, up, kind):
    """Views (x [m, n], up [m, n] or None) of the same memory."""
    n = x.shape[-1]
    x = x.view(-1, n)
    if kind == "swiglu" and up is None:
        return x[:, : n // 2], x[:, n // 2 :]
    return x, None if up is None else up.view(-1, n)


def _blocks(m, n, config):
    """A tile of BLOCK elements as ({BLOCK_M, BLOCK_N}, grid): no wider than the rows.

    Columns by the power of two in n if that is a line of memory at least (11008 = 43 x 256): no tile is then masked.
    """
    whole = n & -n
    block_n = min(config["BLOCK"], whole if whole >= _LINE else triton.next_power_of_2(n))
    block_m = config["BLOCK"] // block_n
    return {"BLOCK_M": block_m, "BLOCK_N": block_n}, (triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)


def _width(x, *lengths):
    """Elements of a 16-byte vector if all lengths are whole ones, else 1."""
    width = VECTOR_BYTES // x.element_size()
    return 1 if any(length % width for length in lengths) else width


def _run_forward(x, kind):
    return _launched("forward", (x, None), kind)


def _run_backward(x, dy, kind):
    return _launched("backward", (x, None, dy), kind)


def _run_gated(gate, up):
    return _launched("forward", (gate, up), "swiglu")


def _run_gated_backward(gate, up, dy):
    return _launched("backward", (gate, up, dy), "swiglu")


def _launched(direction, tensors, kind):
    x, up = tensors[:2]
    n = _columns(x, up, kind) if x.dim() else 1
    strided = (kind == "swiglu" and up is None) or not all(t is None or t.is_contiguous() for t in (x, up))
    m = x.shape[:-1].numel()
    problem = case(_NAMES[x.dtype], kind=kind, strided=strided, m=m, n=n)
    variant, config = choose(DECLARATION, direction, problem, x.device)
    return variant.launch(*tensors, kind, config=config)


def _fake_forward(x, kind):
    return x.new_empty(x.shape if kind != "swiglu" else (*x.shape[:-1], x.shape[-1] // 2))


def _setup(ctx, inputs, output):
    x, ctx.kind = inputs
    ctx.save_for_backward(x)


def _pull_back(ctx, dy):
    (x,) = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        return _backward_reference(x.float(), None, dy.float(), ctx.kind).to(dy.dtype), None
    return _backward(x, dy.contiguous(), ctx.kind), None


def _setup_gated(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _pull_back_gated(ctx, dy):
    gate, up = ctx.saved_tensors
    if torch.is_grad_enabled():
        dgate, dup = _backward_reference(gate.float(), up.float(), dy.float(), "swiglu")
        return dgate.to(dy.dtype), dup.to(dy.dtype)
    return _gated_backward(gate, up, dy.contiguous())


_backward = CustomOperator(
    "activation_backward", "(Tensor x, Tensor dy, str kind) -> Tensor",
    run=_run_backward, fake=lambda x, dy, kind: _empty(x),
)  # fmt: skip
_forward = Differentiable(
    CustomOperator("activation", "(Tensor x, str kind) -> Tensor", run=_run_forward, fake=_fake_forward),
    _setup,
    _pull_back,
)
_gated_backward = CustomOperator(
    "swiglu_backward", "(Tensor gate, Tensor up, Tensor dy) -> (Tensor, Tensor)",
    run=_run_gated_backward, fake=lambda gate, up, dy: (_empty(gate), _empty(up)),
)  # fmt: skip
_gated = Differentiable(
    CustomOperator("swiglu", "(Tensor gate, Tensor up) -> Tensor", run=_run_gated, fake=lambda gate, up: _empty(gate)),
    _setup_gated,
    _pull_back_gated,
)


def gelu(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """``torch.nn.functional.gelu(input, approximate=approximate)`` in fp32, fp16 or bf16, for any shape.

    ``approximate`` is "none" (by erf) or "tanh".  Permuted tensors keep their layout, rows that lie apart are read
    where they are and give a contiguous result; other layouts are copied first.  Second derivatives go through torch's
    operations.  Raises TypeError for another dtype and ValueError for another ``approximate``.
    """
    if approximate == "none":
        return _elementwise("gelu", input, "gelu")
    if approximate != "tanh":
        raise ValueError(f'gelu: approximate is "none" or "tanh": {approximate!r}')
    return _elementwise("gelu", input, "gelu_tanh")


def silu(input: torch.Tensor) -> torch.Tensor:
    """``torch.nn.functional.silu(input)`` in fp32, fp16 or bf16, for any shape; layouts and errors as :func:`gelu`."""
    return _elementwise("silu", input, "silu")


def swiglu(gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
    """``silu(gate) * up`` for two tensors of one shape, dtype (fp32, fp16, bf16) and device, rounded once.

    Without ``up``, ``gate`` is [..., 2 n] and holds both: gate = gate[..., :n], up = gate[..., n:]; the result is
    [..., n] and the gradient one tensor of 2 n columns again.  Rows that lie apart (halves of one tensor, given as two
    views) are read where they are; other layouts are copied first.  The result is contiguous.  Second derivatives go
    through torch's operations.  Raises TypeError for other or differing dtypes, ValueError for shapes and devices.
    """
    if gate.dtype not in _NAMES:
        raise TypeError(f"swiglu takes {', '.join(_DTYPES)}: {gate.dtype}")
    if up is None:
        if not gate.dim() or gate.shape[-1] % 2:
            raise ValueError(f"swiglu of one tensor takes an even number of columns: {tuple(gate.shape)}")
        return _forward(_rowwise(gate), "swiglu")
    if up.dtype != gate.dtype:
        raise TypeError(f"swiglu takes two tensors of one dtype: {gate.dtype}, {up.dtype}")
    if gate.shape != up.shape or gate.device != up.device:
        raise ValueError(
            f"swiglu takes one shape and device: {tuple(gate.shape)} on {gate.device}, "
            f"{tuple(up.shape)} on {up.device}; shapes are not broadcast"
        )
    return _gated(_rowwise(gate), _rowwise(up))


def _elementwise(name, x, kind):
    if x.dtype not in _NAMES:
        raise TypeError(f"{name} takes {', '.join(_DTYPES)}: {x.dtype}")
    if x.is_contiguous():
        return _forward(x, kind)
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    ordered = x.permute(order)
    if ordered.is_contiguous():  # channels last, a transpose: the same elements in another order
        return _forward(ordered, kind).permute([order.index(i) for i in range(x.dim())])
    return _forward(_rowwise(x), kind)


def _rowwise(x):
    """``x`` itself where its rows, of consecutive elements, lie at equal distances; else a contiguous copy."""
    if x.is_contiguous():
        return x
    shape, stride = x.shape, x.stride()
    even = all(stride[i] == stride[i + 1] * shape[i + 1] for i in range(len(shape) - 2))
    return x if stride[-1] == 1 and even and stride[-2] >= shape[-1] else x.contiguous()


_DTYPES = ("fp32", "fp16", "bf16")
_NAMES = {torch_dtype(name): name for name in _DTYPES}
_KINDS = ("silu", "gelu", "gelu_tanh", "swiglu")


def _reference(x, up, kind):
    if kind == "swiglu":
        gate, up = x.chunk(2, dim=-1) if up is None else (x, up)
        return torch.nn.functional.silu(gate) * up
    if kind == "silu":
        return torch.nn.functional.silu(x)
    return torch.nn.functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


def _backward_reference(x, up, dy, kind):
    if kind != "swiglu":
        return dy * _slope(x, kind)
    gate, factor = x.chunk(2, dim=-1) if up is None else (x, up)
    dgate, dup = dy * factor * _slope(gate, "silu"), dy * torch.nn.functional.silu(gate)
    return torch.cat((dgate, dup), dim=-1) if up is None else (dgate, dup)


def _slope(x, kind):
    """The derivative in plain torch, in the accuracy and differentiable as ``x`` is."""
    if kind == "gelu":
        phi = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
        return phi + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    inner, growth = x, x
    if kind == "gelu_tanh":
        scale = 2 * math.sqrt(2 / math.pi)
        inner, growth = scale * (x + 0.044715 * x**3), scale * x * (1 + 3 * 0.044715 * x * x)
    return torch.sigmoid(inner) * (1 + growth * torch.sigmoid(-inner))


def _pulled_back(make, compiles):
    """A backward peer by autograd, of the inputs that the case has."""

    def prepare(**inputs):
        wrt = tuple(name for name in ("x", "up") if inputs[name] is not None)
        return make(_reference, wrt).prepare(**inputs)

    return Peer(prepare, compiles=compiles)


def _liger(x, up, kind):
    from liger_kernel.ops.swiglu import LigerFusedGateUpSiLUMulFunction, LigerSiLUMulFunction

    if kind != "swiglu":
        raise NotImplementedError(f"Liger has no {kind} without a second factor")
    return LigerFusedGateUpSiLUMulFunction.apply(x) if up is None else LigerSiLUMulFunction.apply(x, up)


def _prepare_liger_backward(x, up, dy, kind):
    from liger_kernel.ops.swiglu import swiglu_backward, swiglu_fused_gate_up_backward

    if kind != "swiglu":
        raise NotImplementedError(f"Liger has no {kind} without a second factor")
    if up is None:
        return lambda: swiglu_fused_gate_up_backward(x, dy)
    gate, up = x.clone(), up.clone()  # Liger writes the gradients over them
    return lambda: swiglu_backward(gate, up, dy)


def _inputs(problem: Case, device, generator):
    kind, m, n = problem["kind"], problem["m"], problem["n"]
    dtype, gated = torch_dtype(problem.dtype), problem["kind"] == "swiglu"

    def draw(columns):
        return torch.randn((m, columns), dtype=dtype, device=device, generator=generator)

    if problem["strided"]:  # both factors in one tensor, or every row followed by another's
        both = draw(2 * n)
        return {"x": both if gated else both[:, :n], "up": None, "kind": kind}
    return {"x": draw(n), "up": draw(n) if gated else None, "kind": kind}


def _backward_inputs(problem: Case, device, generator):
    forward = _inputs(problem, device, generator)
    shape = (problem["m"], problem["n"])
    dy = torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)
    return {"x": forward["x"], "up": forward["up"], "dy": dy, "kind": problem["kind"]}


def _call(function, inputs):
    x, up, kind = inputs["x"], inputs["up"], inputs["kind"]
    if kind == "swiglu":
        return function(x, up)
    return silu(x) if kind == "silu" else gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


def _cases(gpu: GPU) -> list[Case]:
    shapes = {
        "bf16": (
            ("silu", False, 128, 1024),  # the launch is the cost
            ("silu", False, 4096, 5120),
            ("silu", False, 16384, 16384),
            ("gelu", False, 4096, 5120),
            ("gelu", False, 8192, 16384),
            ("gelu_tanh", False, 8192, 16384),
            ("swiglu", False, 16, 11008),  # decoding: the launch is the cost
            ("swiglu", False, 4096, 11008),  # Llama's, no power of two
            ("swiglu", False, 8192, 14336),
            ("swiglu", False, 8192, 28672),
            ("swiglu", True, 4096, 11008),  # one projection for both factors
            ("swiglu", True, 8192, 14336),
        ),
        "fp16": (("silu", False, 8192, 8192), ("gelu", False, 8192, 16384), ("swiglu", False, 8192, 14336)),
        "fp32": (("silu", False, 8192, 8192), ("gelu", False, 8192, 8192), ("swiglu", False, 4096, 11008)),
    }
    largest = gpu.memory_bytes // 8 // 5  # the five matrices of swiglu's backward in an eighth of the memory
    return [
        case(dtype, kind=kind, strided=strided, m=m, n=n)
        for dtype, named in shapes.items()
        for kind, strided, m, n in named
        if m * n * element_size(dtype) <= largest
    ]


_EDGE_CASES = tuple(
    case(dtype, reason, kind=kind, strided=strided, m=m, n=n)
    for dtype in _DTYPES
    for kind, strided, m, n, reason in (
        ("silu", False, 1, 1, "one element"),
        ("silu", False, 37, 129, "an odd number of elements: a block and a tail that no vector divides"),
        ("silu", False, 32, 512, "whole blocks only: no tail"),
        ("gelu", False, 37, 129, "an odd number of elements"),
        ("gelu_tanh", False, 37, 129, "an odd number of elements"),
        ("swiglu", False, 37, 129, "an odd number of elements"),
        ("gelu", True, 9, 72, "rows that lie apart"),
        ("swiglu", True, 9, 72, "halves of rows; more rows than a multiple of the tile's"),
        ("swiglu", True, 5, 131, "halves of odd rows: no second half starts on 16 bytes"),
        ("swiglu", True, 3, 5000, "rows longer than a tile, and a tail"),
        ("swiglu", True, 64, 256, "whole tiles only"),
        ("swiglu", True, 19, 320, "tiles whole in their columns, not in their rows"),
    )
)

_HUGE_CASES = (
    case("bf16", "offsets beyond 2^31, and a tail", kind="silu", strided=False, m=1, n=2**31 + 7),
    case("bf16", "row offsets beyond 2^31", kind="swiglu", strided=True, m=2**17 + 1, n=8192),
)


_LINE = 64
"""Columns of a tile at least: 128 bytes of 16-bit elements, a line of memory."""


def _handles(strided: bool):
    def handles(problem: Case, gpu: GPU) -> str:
        if problem["strided"] == strided:
            return ""
        return "rows lie one after the other" if strided else "rows lie apart"

    return handles


def _fits(most: int):
    """``fits`` for at most ``most`` vectors a thread."""

    def fits(config: dict, problem: Case, gpu: GPU) -> str:
        vectors = config["BLOCK"] * element_size(problem.dtype) / (32 * config["num_warps"] * VECTOR_BYTES)
        if not 1 <= vectors <= most:
            return f"{vectors:g} 16-byte vectors a thread of each tensor; 1 to {most} keep memory busy without spills"
        return ""

    return fits


def _default(problem: Case, gpu: GPU) -> dict:
    """Two 16-byte vectors of each tensor a thread, of four warps."""
    return {"BLOCK": 2 * 4 * 32 * VECTOR_BYTES // element_size(problem.dtype), "num_warps": 4}


_SPACE = {"BLOCK": (512, 1024, 2048, 4096, 8192), "num_warps": (2, 4, 8)}


def _variants(flat, rows, most):
    """The two variants of a pass, for at most ``most`` vectors a thread."""
    return (
        Variant(
            name="flat",
            summary="blocks of consecutive elements",
            launch=flat,
            space=_SPACE,
            default=_default,
            fits=_fits(most),
            handles=_handles(strided=False),
        ),
        Variant(
            name="rows",
            summary="tiles of rows that lie apart, such as halves of one tensor",
            launch=rows,
            space=_SPACE,
            default=_default,
            fits=_fits(most),
            handles=_handles(strided=True),
        ),
    )


def _bytes(problem: Case, *names: str) -> dict[str, int]:
    size = problem["m"] * problem["n"] * element_size(problem.dtype)
    return {name: size for name in names if name not in ("up", "dup") or problem["kind"] == "swiglu"}


DECLARATION = Declaration(
    name="activation",
    family="elementwise",
    summary="gelu(x), silu(x), silu(gate) * up",
    function=swiglu,
    call=_call,
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("x", "up"),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("out",),
        variants=_variants(_launch_flat, _launch_rows, most=4),
        peers={
            "torch": eager(_reference),
            "torch.compile": compiled(_reference),
            "liger": eager(_liger, requires="liger_kernel"),
        },
        bytes=lambda c: _bytes(c, "x", "up", "out"),
        flops=lambda c: {"f(x)": 8 * c["m"] * c["n"]} | ({"* up": c["m"] * c["n"]} if c["kind"] == "swiglu" else {}),
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_backward_reference,
        outputs=("dx", "dup"),
        variants=_variants(_launch_flat_backward, _launch_rows_backward, most=2),
        peers={
            "torch": _pulled_back(gradients, compiles=False),
            "torch.compile": _pulled_back(compiled_gradients, compiles=True),
            "liger": Peer(_prepare_liger_backward, requires="liger_kernel"),
        },
        bytes=lambda c: _bytes(c, "x", "up", "dy", "dx", "dup"),
        flops=lambda c: {"f'(x)": 12 * c["m"] * c["n"]},
    ),
)
