"""What the linear layer is checked and measured on: its formulas by torch, its inputs, its cases, what they cost."""

import functools
import math

import torch
from atlas.declaration import GPU, Case, Peer, case, element_size, torch_dtype

from kernels.common.peers import by_cublaslt
from kernels.common.products import fitting

DTYPES = ("fp32", "fp16", "bf16")
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")


def reference(x, weight, bias, residual, activation, scale):
    if scale == 1.0 and (bias is None or bias.dtype == x.dtype):
        z = torch.nn.functional.linear(x, weight, bias)
    else:
        z = scale * torch.nn.functional.linear(x, weight)
        z = z if bias is None else z + bias
    y = _TORCH[activation](z)
    return y if residual is None else y + residual


_TORCH = {
    "none": lambda z: z,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


def backward_reference(x, weight, bias, residual, z, dy, activation, scale):
    """The formulas of `matmul_epilogue`, with torch's derivative of act at z."""
    g = dy
    if activation != "none":
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            (g,) = torch.autograd.grad(_TORCH[activation](z), z, dy)
    dx, dweight = scale * (g @ weight), scale * (g.t() @ x)
    return (dx, dweight) if bias is None else (dx, dweight, g.sum(dim=0))


def pulled_back(make, compiles):
    """A backward peer by autograd, of the inputs that the case has; it keeps its own z."""

    def prepare(z, **inputs):
        wrt = tuple(name for name in ("x", "weight", "bias") if inputs[name] is not None)
        return make(reference, wrt).prepare(**inputs)

    return Peer(prepare, compiles=compiles)


def prepare_cublaslt(x, weight, bias, residual, activation, scale):
    """torch's private way to the epilogues of cuBLASLt, which take a bias and relu or gelu (by tanh).

    Zeros are a bias, too.  One without an activation is what torch's linear leaves to cuBLASLt itself.
    """
    if residual is not None or scale != 1.0:
        raise NotImplementedError("torch gives cuBLASLt neither a residual nor a scale")
    if activation == "none" and bias is None:
        return by_cublaslt(x, weight.t())
    if activation not in ("relu", "gelu_tanh"):
        raise NotImplementedError("_addmm_activation takes relu or gelu by tanh, and torch's linear a bias alone")
    bias = torch.zeros(weight.shape[0], dtype=x.dtype, device=x.device) if bias is None else bias
    return lambda: torch._addmm_activation(bias, x, weight.t(), use_gelu=activation == "gelu_tanh")


def inputs(problem: Case, device, generator):
    m, n, k, dtype = problem["m"], problem["n"], problem["k"], torch_dtype(problem.dtype)

    def draw(*shape):
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    return {
        "x": draw(m, k),
        "weight": draw(n, k) * (1 / math.sqrt(k)),  # so that z is of size 1, where activations bend
        "bias": draw(n) if problem["bias"] else None,
        "residual": draw(m, n) if problem["residual"] else None,
        "activation": problem["activation"],
        "scale": 1.0,
    }


def backward_inputs(problem: Case, device, generator):
    forward = inputs(problem, device, generator)
    activation, scale = forward.pop("activation"), forward.pop("scale")
    x, weight, bias, residual = forward.values()
    z = None if activation == "none" else torch.nn.functional.linear(x, weight, bias)
    if activation == "relu" and residual is None:
        z = torch.relu(z)
    dy = torch.randn((problem["m"], problem["n"]), dtype=x.dtype, device=device, generator=generator)
    return {**forward, "z": z, "dy": dy, "activation": activation, "scale": scale}


def call(function, inputs):
    activation = None if inputs["activation"] == "none" else inputs["activation"]
    return function(
        inputs["x"], inputs["weight"], inputs["bias"],
        activation=activation, residual=inputs["residual"], scale=inputs["scale"],
    )  # fmt: skip


def least_bytes(problem: Case) -> dict[str, float]:
    m, n, k = problem["m"], problem["n"], problem["k"]
    size = element_size(problem.dtype)
    terms = {"x": m * k * size, "weight": n * k * size, "y": m * n * size}
    optional = {"bias": n * size, "residual": m * n * size}
    return terms | {name: bytes for name, bytes in optional.items() if problem[name]}


def backward_bytes(problem: Case) -> dict[str, float]:
    m, n, k = problem["m"], problem["n"], problem["k"]
    size = element_size(problem.dtype)
    terms = {"x, dx": 2 * m * k * size, "weight, dweight": 2 * n * k * size, "dy": m * n * size}
    optional = {"z": m * n * size * (problem["activation"] != "none"), "dbias": n * size * problem["bias"]}
    return terms | {name: bytes for name, bytes in optional.items() if bytes}


def flops(problem: Case) -> dict[str, float]:
    return {"x @ W^T": 2 * problem["m"] * problem["n"] * problem["k"]}


def backward_flops(problem: Case) -> dict[str, float]:
    product = 2 * problem["m"] * problem["n"] * problem["k"]
    return {"g @ W": product, "g^T @ x": product}


def sweep(gpu: GPU) -> list[Case]:
    shapes = {
        "bf16": (
            ("gelu_tanh", True, False, 512, 512, 512),  # the launch is the cost
            ("relu", True, False, 1024, 1024, 1024),
            ("relu", False, False, 4096, 4096, 4096),
            ("relu", False, False, 8192, 8192, 8192),
            ("gelu", True, False, 4096, 4096, 4096),
            ("gelu", True, False, 8192, 4096, 1024),  # feed-forward, up, of a model 1024 wide
            ("silu", False, False, 8192, 8192, 2048),  # the gate of one 2048 wide
            ("silu", False, False, 2048, 11008, 4096),  # n is no multiple of 256 x 8
            ("gelu_tanh", True, False, 4096, 14336, 4096),  # up, of one 4096 wide
            ("gelu_tanh", True, False, 512, 14336, 4096),  # for few tokens
            ("none", True, True, 4096, 4096, 14336),  # and down: the long sum, and the block's residual
            ("none", True, True, 4096, 4096, 4096),  # attention's projection, and the block's residual
            ("none", True, False, 32, 2048, 8192),  # tens of tokens: few tiles, a long sum
            ("none", False, False, 8, 14336, 5124),  # a handful, and W off 16 bytes
            ("gelu", True, False, 256, 4096, 1024),  # a short text through a small model
            ("none", False, False, 2048, 50257, 1024),  # logits of a vocabulary off 16 bytes
        ),
        "fp16": (("gelu_tanh", True, False, 4096, 4096, 4096),),
        "fp32": (("relu", True, False, 1024, 1024, 1024), ("gelu", True, False, 128, 1024, 4096)),
    }
    cases = [
        case(dtype, activation=activation, bias=bias, residual=residual, m=m, n=n, k=k)
        for dtype, named in shapes.items()
        for activation, bias, residual, m, n, k in named
    ]
    return fitting(cases, backward_bytes, gpu)


def tuned_by_torch(problem: Case) -> bool:
    """Cases on which torch.compile may tune products of Triton's beside cuBLAS's: a large one, and one of few rows."""
    return problem.dtype == "bf16" and problem["activation"] == "gelu" and problem["k"] == 1024


EDGE_CASES = tuple(
    case(dtype, reason, activation=activation, bias=bias, residual=residual, m=m, n=n, k=k)
    for dtype in DTYPES
    for activation, bias, residual, (m, n, k), reason in (
        ("relu", True, True, (1, 1, 1), "one element of each"),
        ("none", False, False, (128, 128, 64), "whole tiles only; the plain product"),
        ("gelu", True, False, (70, 64, 64), "a tail in m"),
        ("gelu_tanh", True, True, (64, 72, 64), "a tail in n, rows aligned to 16 bytes"),
        ("silu", False, True, (33, 65, 129), "tails everywhere, strides that allow no wide loads"),
        ("relu", True, False, (48, 40, 7), "k smaller than any block of it"),
        ("none", True, False, (16, 256, 72), "a bias alone; a tail in k; more columns of tiles than rows"),
        ("silu", True, False, (320, 32, 16), "more rows of tiles than columns: the last group is not full"),
        ("relu", True, True, (20, 24, 1032), "few tiles and a long sum: K in parts, the last one shorter"),
        ("relu", True, False, (19, 21, 1027), "the same of rows off 16 bytes"),
    )
) + tuple(  # of more tiles of 128 x 128, or 256, than an H200 has SMs, in rows of whole 16 bytes
    case(dtype, reason, activation=activation, bias=bias, residual=residual, m=m, n=n, k=k)
    for dtype in ("fp16", "bf16")
    for activation, bias, residual, (m, n, k), reason in (
        ("relu", True, False, (16904, 40, 40), "133 tiles: a second one for one program, with tails everywhere"),
        ("gelu_tanh", True, False, (26872, 72, 72), "210 tiles: too many in the last round for it to be cut"),
        ("gelu", False, False, (17016, 264, 16), "a block of K for a tile, not filled; a cut third or fourth round"),
        ("silu", False, True, (6724, 520, 392), "more blocks of K than stages; a cut last round; a residual"),
        ("none", True, True, (17024, 256, 128), "whole tiles only, of two rounds and more, with a residual"),
        ("none", True, True, (17024, 40, 41), "a residual that TMA fetches beside padded copies"),
        ("silu", True, True, (14000, 40, 1032), "110 tiles of 128 x 128: one for each of most SMs"),
        ("gelu", True, True, (5, 2061, 2050), "few rows, and 8 MiB of W off 16 bytes, on 4"),
        ("relu", True, True, (20, 2051, 2053), "the same of odd rows"),
        ("gelu_tanh", True, True, (1031, 3, 4101), "few columns, and 8 MiB of odd rows of x"),
        ("silu", True, True, (1, 2061, 2050), "one row, and 8 MiB of W off 16 bytes"),
        ("gelu", True, False, (1, 263, 1027), "one row, and odd rows of W"),
        ("none", False, False, (8, 17032, 260), "few rows, more tiles of 128 x 128 than SMs, W off 16 bytes"),
        ("gelu_tanh", True, False, (20, 17031, 101), "the same of odd rows"),
        ("gelu_tanh", True, False, (4104, 264, 72), "fewer tiles than of 128 x 128 cover y: of 256 x 64"),
        ("silu", True, False, (260, 4104, 72), "the same of 64 x 256"),
        ("none", True, False, (136, 8712, 72), "one round of those, two of 128 x 128"),
        ("relu", False, False, (2056, 260, 72), "the same of 128 x 64, rows of y off 16 bytes"),
        ("gelu", True, True, (24, 136, 4104), "few rows, and a long sum whose parts a cluster adds"),
        ("silu", True, False, (200, 24, 2056), "the same of few columns"),
        ("gelu_tanh", True, True, (9, 2056, 520), "few rows, and a tile for each program, with all of K"),
        ("none", False, False, (133, 131, 72), "dy off 16 bytes, which is copied once for both products"),
        ("gelu", True, False, (69, 325, 41), "the same of its product with act', short of lines of 128 bytes"),
    )
)

EDGE_CASES += tuple(
    case("fp32", reason, activation=activation, bias=bias, residual=residual, m=m, n=n, k=k)
    for activation, bias, residual, (m, n, k), reason in (
        ("gelu", True, True, (4228, 132, 36), "more tiles of 64 x 64 than SMs, with tails everywhere"),
        ("relu", False, False, (8512, 64, 8), "a block of K for a tile, not filled"),
        ("gelu_tanh", True, True, (132, 67, 1027), "parts of `swizzled`'s tiles, with tails and copies"),
        ("gelu", True, True, (7, 70, 1300), "few rows, parts with tails"),
        ("silu", True, False, (1, 37, 525), "one row, rows of W off 16 bytes"),
        ("gelu", True, True, (1021, 1019, 1037), "terms of bf16, tails and rows off 16 bytes"),
    )
)

HUGE_CASES = (
    case("bf16", "offsets into x beyond 2^31", activation="relu", bias=True, residual=False, m=2**18 + 1, n=16, k=8192),
    case("bf16", "offsets into y beyond 2^31", activation="gelu", bias=True, residual=True, m=2**18 + 1, n=8192, k=16),
)
