"""Problems of rms_norm: which are tuned and timed, which validation adds, how inputs are drawn, what a pass moves."""

import torch
from atlas.declaration import Case, case, edge_cases, normal, sweep

from kernels.common.norms import parameter_draw

EPS = 1e-6
"""What language models use, in all cases."""


def forward_inputs(problem: Case, device, generator):
    m, n, draw = problem["m"], problem["n"], normal(problem, device, generator)
    x, residual = draw(m, n), draw(m, n) if problem["residual"] else None
    return {"x": x, "residual": residual, "weight": parameter_draw(problem, device, generator)(n), "eps": EPS}


def backward_inputs(problem: Case, device, generator):
    forward = forward_inputs(problem, device, generator)
    x, residual = forward["x"], forward["residual"]
    return {
        "x": x,
        "weight": forward["weight"],
        "rstd": (x.float().square().mean(dim=-1) + EPS).rsqrt(),
        "dy": torch.randn(x.shape, dtype=x.dtype, device=device, generator=generator),
        "dsum": residual,
    }


benchmark_cases = sweep(
    "m n residual",
    {
        "bf16": (
            (2**18, 128, False),  # queries, head by head: short rows, several of them a program
            (2**17, 100, False),
            (128, 1024, False),  # the launch is the cost
            (4096, 1024, False),
            (16384, 4096, False),
            (8192, 5120, False),  # a hidden size, no power of two
            (8192, 8192, False),
            (8192, 11008, False),  # a size between powers of two, and no multiple of 1024
            (16384, 16384, False),
            (4096, 32768, False),
            (4096, 4096, True),
            (8192, 8192, True),
        ),
        "fp16": ((4096, 1024, False), (8192, 8192, False), (4096, 32768, False)),
        "fp32": ((4096, 1024, False), (8192, 8192, False), (4096, 32768, False)),
    },
    tensors=4,  # the matrices of a pass with a residual
)

EDGE_CASES = edge_cases(
    "m n residual",
    (
        # Not of one or two elements: nearly all of dx cancels, and what is left is rounding in every implementation.
        (3, 7, False, "three short rows"),
        (7, 1, True, "rows of one element, with a residual"),
        (1, 1000, False, "one row, not a power of two: several tiles, the last one masked"),
        (37, 129, True, "odd rows, one element past a power of two: no row but the first starts on 16 bytes"),
        (33, 64, False, "one row more than whole tiles of rows"),
        (1030, 24, True, "many short rows: tiles of several, the last one cut"),
        (3, 4097, False, "rows one element longer than a block of the streaming variants: a tail of one"),
        (13, 5120, True, "whole tiles, though no power of two; long rows, and more of them than programs"),
        (2, 20_000, False, "several blocks and a tail"),
        (40, 8, True, "more rows than programs: each owns several and adds them up"),
        (700, 40, False, "few short rows, but more than a program's tile of them: several, the last one cut"),
        (5, 17_001, True, "odd rows, longer than a program holds: several own parts and read all of each"),
        (6, 20_004, True, "rows of whole 8 bytes, cut among programs: the last part ends within a tile"),
        (1100, 4099, True, "many odd rows: those that begin at one place of a vector belong to one program"),
        (35, 520, False, {"wide": True}, "a weight in fp32, whatever the input's dtype"),
    ),
)

# Of the shapes with as many elements one that every variant takes.
HUGE_CASES = (
    case("bf16", "row offsets beyond 2^31: one row more than 2^31 elements hold", m=2**18 + 1, n=8192, residual=False),
)
