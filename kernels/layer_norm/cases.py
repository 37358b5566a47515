"""Problems of layer_norm: which are tuned and timed, which validation adds, how inputs are drawn, what a pass moves."""

import torch
from atlas.declaration import GPU, Case, case, edge_cases, normal, sweep

from kernels.common.norms import has_residual, parameter_draw

EPS = 1e-5
"""torch's default, in all cases."""


def forward_inputs(problem: Case, device, generator):
    m, n, draw = problem["m"], problem["n"], normal(problem, device, generator)
    residual = {"residual": draw(m, n)} if has_residual(problem) else {}
    x, of_columns = draw(m, n), parameter_draw(problem, device, generator)
    return {"x": x, "weight": of_columns(n), "bias": of_columns(n), "eps": EPS} | residual


def backward_inputs(problem: Case, device, generator):
    forward = forward_inputs(problem, device, generator)
    x = forward["x"]  # with a residual, what was normalised
    mean = x.float().mean(dim=-1)
    rstd = (x.float().var(dim=-1, correction=0) + EPS).rsqrt()
    dy = torch.randn(x.shape, dtype=x.dtype, device=device, generator=generator)
    dsum = {"dsum": forward["residual"]} if has_residual(problem) else {}
    return {"x": x, "weight": forward["weight"], "bias": forward["bias"], "mean": mean, "rstd": rstd, "dy": dy} | dsum


_PLAIN = sweep(
    "m n",
    {
        "bf16": (
            (2**18, 64),  # short rows, several of them a program
            (2**17, 256),
            (128, 1024),  # the launch is the cost
            (4096, 1024),
            (16384, 4096),
            (4096, 5120),  # a hidden size, no power of two
            (8192, 8192),
            (4096, 11008),  # the width of a feed-forward layer: 43 lines of 256
            (8192, 16384),
            (4096, 32768),
        ),
        "fp16": ((4096, 1024), (8192, 8192), (4096, 32768)),
        "fp32": ((4096, 1024), (8192, 8192), (4096, 32768)),
    },
    tensors=4,  # the matrices of the backward pass
)
_WITH_RESIDUAL = sweep(
    "m n residual", {"bf16": ((128, 1024, True), (16384, 4096, True), (8192, 8192, True))}, tensors=4
)


def benchmark_cases(gpu: GPU) -> list[Case]:
    """What is tuned and timed on a GPU."""
    return _PLAIN(gpu) + _WITH_RESIDUAL(gpu)


EDGE_CASES = edge_cases(
    "m n",
    (
        (1, 1, "one element: its own mean, no variance"),
        (7, 1, "rows of one element: rstd is 1 / sqrt(eps)"),
        (1, 1000, "one row, not a power of two"),
        (37, 129, "odd rows, one element past a power of two: no row but the first starts on 16 bytes"),
        (33, 64, "one row more than whole tiles of rows"),
        (1030, 24, "many short rows: tiles of several, the last one cut"),
        (3, 4097, "rows one element longer than a block of the streaming variants: a tail of one"),
        (2, 20_000, "several blocks and a tail"),
        (9, 9008, "rows too long for both sums of a program; the last tile cut"),
        (140, 8, "more rows than programs: each owns several and adds them up"),
        (11, 136, {"residual": True}, "a residual, rows that no tile of them divides"),
        (3, 4100, {"residual": True}, "a residual, several blocks and a tail"),
        (700, 40, "few short rows, but more than a program's tile of them: several, the last one cut"),
        (5, 17_001, "odd rows, longer than a program holds: several own parts and read all of each"),
        (6, 20_004, "rows of whole 8 bytes, cut among programs: the last part ends within a tile"),
        (1100, 4099, "many odd rows: those that begin at one place of a vector belong to one program"),
        (35, 520, {"wide": True}, "weight and bias in fp32, whatever the input's dtype"),
    ),
)

# Of the shapes with as many elements one that every variant takes: n = 8192 is the longest row of backward's registers.
HUGE_CASES = (case("bf16", "row offsets beyond 2^31: one row more than 2^31 elements hold", m=2**18 + 1, n=8192),)
