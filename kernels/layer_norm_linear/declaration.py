"""Which cases there are, the least they cost, variants and peers."""

import torch
from atlas.declaration import (
    Case,
    Declaration,
    Pass,
    Variant,
    case,
    compiled,
    eager,
    edge_cases,
    element_size,
    max_autotuned,
    normal,
    sweep,
)

from .fused import SPACE, fits_fused, fused_default, launch_fused
from .separate import SEPARATE_SPACE, fits_separate, launch_separate, separate_default


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
                launch=launch_separate,
                space=SEPARATE_SPACE,
                default=separate_default,
                fits=fits_separate,
            ),
            Variant(
                name="fused",
                summary="statistics of rows first, then a product that normalises each tile of x",
                launch=launch_fused,
                space=SPACE,
                default=fused_default,
                fits=fits_fused,
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
