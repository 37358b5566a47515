"""A small kernel for the tests to plant faults in: y = x / sqrt(mean(x^2) + EPS), row by row, and its gradient.

Tests import altered copies of this file (see ``planting.py``); as it stands it is right.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import Declaration, Pass, Variant, case, choose, eager, gradients, torch_dtype

EPS = 1e-2
CALLS = []
RESULTS = {}


@triton.jit
def _forward_kernel(x_ptr, y_ptr, stride_xm, stride_xn, n, EPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < n
        x = tl.load(x_ptr + row * stride_xm + offs * stride_xn, mask=mask, other=0.0).to(tl.float32)
        squares += x * x
    rstd = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / n + EPS)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < n
        x = tl.load(x_ptr + row * stride_xm + offs * stride_xn, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * n + offs, x * rstd, mask=mask)


@triton.jit
def _backward_kernel(x_ptr, dy_ptr, dx_ptr, n, EPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + row + offs, mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + row + offs, mask=mask, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / n + EPS)
    dot = tl.sum(x * dy, axis=0) / n
    tl.store(dx_ptr + row + offs, rstd * (dy - x * rstd * rstd * dot), mask=mask)


def _launch(x, *, config):
    m, n = x.shape
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if x.numel():
        _forward_kernel[(m,)](x, y, x.stride(0), x.stride(1), n, EPS=EPS, BLOCK=config["BLOCK"])
    return y


def _launch_backward(x, dy, *, config):
    dx = torch.empty_like(x)
    if x.numel():
        _backward_kernel[(x.shape[0],)](x, dy, dx, x.shape[1], EPS=EPS, BLOCK=triton.next_power_of_2(x.shape[1]))
    return dx


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        variant, config = choose(DECLARATION, "forward", _case_of(x), x.device)
        return variant.launch(x, config=config)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        variant, config = choose(DECLARATION, "backward", _case_of(x), x.device)
        return variant.launch(x.contiguous(), dy.contiguous(), config=config)


def _case_of(x):
    return case({torch_dtype(d): d for d in ("fp32", "fp16")}[x.dtype], m=x.shape[0], n=x.shape[1])


def normalize(x):
    return _Function.apply(x)


def _reference(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def _torch(x):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], eps=EPS)


def _reference_backward(x, dy):
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
    return rstd * (dy - x * rstd.square() * (x * dy).mean(-1, keepdim=True))


def _inputs(problem, device, generator):
    shape = problem["m"], problem["n"]
    x = torch.empty(shape, dtype=torch_dtype(problem.dtype), device=device)
    # Where no memory is, there is nothing to draw; torch would import its compiler to find that out, for 2 s a process.
    # A quarter of N(0, 1): the mean square is of the order of EPS, which then matters.
    return {"x": x if x.is_meta else x.normal_(generator=generator).mul_(0.25)}


def _inputs_backward(problem, device, generator):
    return _inputs(problem, device, generator) | {"dy": 4 * _inputs(problem, device, generator)["x"]}


def _variant(launch, **options):
    default = lambda problem, gpu: {"BLOCK": 32}  # noqa: E731
    return Variant("rows", launch, space={"BLOCK": (16, 32, 64)}, default=default, **options)


DECLARATION = Declaration(
    name="row_kernel",
    family="test",
    summary="y = x / rms(x)",
    function=normalize,
    call=lambda function, inputs: function(inputs["x"]),
    dtypes=("fp32", "fp16"),
    cases=lambda gpu: [],
    edge_cases=tuple(
        case(dtype, reason, m=m, n=n)
        for dtype in ("fp32", "fp16")
        for m, n, reason in ((5, 33, "a tail of one"), (1, 7, "less than a block"), (4, 64, "whole blocks"))
    ),
    differentiable=("x",),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("y",),
        variants=(_variant(_launch),),
        peers={"torch": eager(_torch)},
        bytes=lambda c: {name: c["m"] * c["n"] * torch_dtype(c.dtype).itemsize for name in ("x", "y")},
        flops=lambda c: {"square, add, scale": 3 * c["m"] * c["n"]},
        reduction=lambda c: c["n"],
    ),
    backward=Pass(
        inputs=_inputs_backward,
        reference=_reference_backward,
        outputs=("dx",),
        variants=(_variant(_launch_backward),),
        peers={"torch": gradients(_torch, ("x",))},
        bytes=lambda c: {name: c["m"] * c["n"] * torch_dtype(c.dtype).itemsize for name in ("x", "dy", "dx")},
        flops=lambda c: {"square, product, difference": 8 * c["m"] * c["n"]},
        reduction=lambda c: c["n"],
    ),
)
