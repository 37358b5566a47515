"""Dropout over rows, for the tests to plant faults in: y = x / (1 - p) where kept, 0 elsewhere.  Right as it is."""

import torch
import triton
import triton.language as tl
from atlas.declaration import Declaration, Pass, Random, Variant, case, choose, eager, torch_dtype


@triton.jit
def _dropout_kernel(x_ptr, y_ptr, p, seed, n, BLOCK: tl.constexpr, BACKWARD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < n
        x = tl.load(x_ptr + row * n + offs, mask=mask, other=0.0).to(tl.float32)
        keep = tl.rand(seed, row.to(tl.int32) * n + offs) >= p
        tl.store(y_ptr + row * n + offs, tl.where(keep, x / (1 - p), 0.0), mask=mask)


def _launch_on(x, p, seed, config, backward):
    y = torch.empty_like(x)
    m, n = x.shape
    if x.numel():
        _dropout_kernel[(m,)](x, y, p, seed, n, BLOCK=config["BLOCK"], BACKWARD=backward)
    return y


def _launch(x, p, seed, *, config):
    return _launch_on(x, p, seed, config, False)


def _launch_backward(dy, p, seed, *, config):
    return _launch_on(dy, p, seed, config, True)


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p, seed):
        ctx.p, ctx.seed = p, seed
        variant, config = choose(DECLARATION, "forward", _case_of(x), x.device)
        return variant.launch(x, p, seed, config=config)

    @staticmethod
    def backward(ctx, dy):
        variant, config = choose(DECLARATION, "backward", _case_of(dy), dy.device)
        return variant.launch(dy.contiguous(), ctx.p, ctx.seed, config=config), None, None


def _case_of(x):
    return case("fp32", m=x.shape[0], n=x.shape[1])


def dropout(x, p, seed):
    return _Function.apply(x.contiguous(), p, seed)


def _reference(x, p, seed, mask):
    return torch.where(mask, x, torch.zeros_like(x)) / (1 - p)


def _reference_backward(dy, p, seed, mask):
    return _reference(dy, p, seed, mask)


def _inputs(problem, device, generator):
    shape = problem["m"], problem["n"]
    x = torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)
    return {"x": x, "p": 0.1, "seed": 1234}


def _inputs_backward(problem, device, generator):
    drawn = _inputs(problem, device, generator)
    return {"dy": drawn.pop("x")} | drawn


def _pass(inputs, reference, output, launch, name):
    default = lambda problem, gpu: {"BLOCK": 8192}  # noqa: E731
    return Pass(
        inputs=inputs,
        reference=reference,
        outputs=(output,),
        variants=(Variant("rows", launch, space={"BLOCK": (4096, 8192)}, default=default),),
        peers={"torch": eager(lambda p, seed, **tensors: torch.nn.functional.dropout(tensors[name], p))},
        bytes=lambda c: dict.fromkeys((name, output), c["m"] * c["n"] * 4),
        flops=lambda c: {"scale": c["m"] * c["n"]},
        random=Random("seed", "p", lambda inputs, outputs: outputs[0] != 0),
    )


DECLARATION = Declaration(
    name="dropout_kernel",
    family="test",
    summary="y = x / (1 - p) where kept",
    function=dropout,
    call=lambda function, inputs: function(inputs["x"], inputs["p"], inputs["seed"]),
    dtypes=("fp32",),
    cases=lambda gpu: [],
    edge_cases=(
        case("fp32", "a tail, few elements", m=5, n=33),
        case("fp32", "enough elements to see a keep rate that is 2 % off", m=5, n=8000),
    ),
    differentiable=("x",),
    forward=_pass(_inputs, _reference, "y", _launch, "x"),
    backward=_pass(_inputs_backward, _reference_backward, "dx", _launch_backward, "dy"),
)
