"""embedding as the project knows it: its cases, the least they cost, references and peers."""

import functools
import math

import torch
from atlas.declaration import (
    GPU,
    Case,
    Declaration,
    Pass,
    Peer,
    Variant,
    case,
    compiled,
    eager,
    element_size,
    torch_dtype,
)

from .gradient import RUNS_SPACE, fits_runs, launch_runs, runs_default
from .lookup import (
    ROWS_SPACE,
    TILES_SPACE,
    fits_rows,
    fits_tiles,
    launch_gather,
    rows_default,
    rows_kernel,
    tiles_default,
    tiles_kernel,
)

_DTYPES = ("fp32", "fp16", "bf16")


def _cases(gpu: GPU) -> list[Case]:
    shapes = {
        "bf16": (
            (512, 32_000, 1024),  # forward the launch is the cost
            (4096, 32_000, 4096),
            (16384, 50_257, 768),  # short rows, and an odd number of them
            (16384, 32_000, 5120),  # a hidden size, no power of two
            (16384, 128_256, 4096),
            (131_072, 128_256, 4096),  # a whole batch: forward 1 GiB is written
            (8192, 128_256, 16384),  # backward 4 GiB are written
        ),
        "fp16": ((4096, 32_000, 4096),),
        "fp32": ((4096, 32_000, 4096), (16384, 50_257, 768), (16384, 128_256, 4096)),
    }
    return [
        case(d, m=m, v=v, n=n)
        for d, sizes in shapes.items()
        for m, v, n in sizes
        if (v + 2 * m) * n * element_size(d) <= gpu.memory_bytes // 8
    ]


_EDGE_CASES = tuple(
    case(dtype, reason, m=m, v=v, n=n)
    for dtype in _DTYPES
    for m, v, n, reason in (
        (1, 1, 1, "one element"),
        (7, 5, 33, "few tokens, and odd rows: none but the first starts on 16 bytes"),
        (5, 200, 64, "nearly all rows are named by no token: their gradient is 0"),
        (50, 1, 8, "one row named by all: its run has whole tiles of 16 tokens and single ones after them"),
        (90, 3, 129, "three long runs, which begin and end inside tiles of 16 tokens; two chunks of 64 are merged"),
        (12, 9, 4104, "whole vectors, and more columns than the widest block"),
        (130, 300, 8, "three chunks to merge, the last with a tail; most runs short, rows to search for two programs"),
    )
)

_HUGE_CASES = (
    case("bf16", "offsets beyond 2^31 in table and result", m=2**18 + 1, v=2**18 + 4096, n=8192),
)  # fmt: skip


def _tokens(problem: Case, device, generator):
    """Token t in [0, v) has probability ln((t + 2) / (t + 1)) / ln(v + 1), about 1 / t, as words have in texts."""
    m, v = problem["m"], problem["v"]
    if str(device) == "meta":
        return torch.empty(m, dtype=torch.int64, device=device)
    u = torch.rand(m, dtype=torch.float64, device=device, generator=generator)
    return ((v + 1.0) ** u - 1).long().clamp_(0, v - 1)


def _inputs(problem: Case, device, generator):
    shape = (problem["v"], problem["n"])
    weight = torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)
    # The last row stands for padding; of a single row nothing would be left.
    padding_idx = problem["v"] - 1 if problem["v"] > 1 else -1
    return {"index": _tokens(problem, device, generator), "weight": weight, "padding_idx": padding_idx}


def _backward_inputs(problem: Case, device, generator):
    shape = (problem["m"], problem["n"])
    dy = torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)
    padding_idx = problem["v"] - 1 if problem["v"] > 1 else -1
    return {
        "dy": dy, "index": _tokens(problem, device, generator), "rows": problem["v"], "padding_idx": padding_idx,
    }  # fmt: skip


@functools.cache
def _rows_read(m: int, v: int) -> float:
    """How many different rows ``m`` tokens name on average, with the probabilities of :func:`_tokens`."""
    row = torch.arange(v, dtype=torch.float64)
    probability = torch.log1p(1 / (row + 1)) / math.log(v + 1)
    return float((1 - (1 - probability) ** m).sum())


def _longest_run(c: Case) -> int:
    """Tokens that name the most frequent row, on average."""
    return math.ceil(c["m"] * math.log(2) / math.log(c["v"] + 1))


def _reference(index, weight, padding_idx):
    if not weight.shape[1]:  # torch's gradient of such a table is an illegal access (2.11, H200), this sum's is not
        return weight.sum(dim=0).expand(*index.shape, 0)
    return torch.nn.functional.embedding(index, weight, padding_idx if padding_idx >= 0 else None)


def backward_reference(dy, index, rows, padding_idx):
    if not dy.shape[-1]:
        return dy.sum(dim=tuple(range(dy.dim() - 1))).expand(rows, 0)
    return torch.ops.aten.embedding_dense_backward(dy, index, rows, padding_idx, False)


def _liger(index, weight, padding_idx):
    from liger_kernel.ops.experimental.embedding import LigerEmbeddingFunction

    return LigerEmbeddingFunction.apply(weight, index)


def _prepare_liger_backward(dy, index, rows, padding_idx):
    """Liger's gradient, which knows no padding_idx."""
    weight = torch.empty((rows, dy.shape[-1]), dtype=dy.dtype, device=dy.device, requires_grad=True)
    out = _liger(index, weight, padding_idx)
    return lambda: torch.autograd.grad(out, weight, dy, retain_graph=True)


DECLARATION = Declaration(
    name="embedding",
    family="gather",
    summary="out = weight[index], rows of a table",
    call=lambda function, inputs: function(
        inputs["index"], inputs["weight"], inputs["padding_idx"] if inputs["padding_idx"] >= 0 else None
    ),
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("weight",),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("out",),
        variants=(
            Variant(
                name="tiles",
                summary="a tile of tokens times columns a program",
                launch=launch_gather(tiles_kernel),
                space=TILES_SPACE,
                default=tiles_default,
                fits=fits_tiles,
            ),
            Variant(
                name="rows",
                summary="as tiles, every thread with all indices",
                launch=launch_gather(rows_kernel),
                space=ROWS_SPACE,
                default=rows_default,
                fits=fits_rows,
            ),
        ),
        peers={
            "torch": eager(_reference),
            "torch.compile": compiled(_reference),
            "liger": eager(_liger, requires="liger_kernel"),
        },
        bytes=lambda c: {
            "index": c["m"] * element_size("int64"),
            "weight": _rows_read(c["m"], c["v"]) * c["n"] * element_size(c.dtype),
            "out": c["m"] * c["n"] * element_size(c.dtype),
        },
        flops=lambda c: {"none": 0},
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=backward_reference,
        outputs=("dweight",),
        variants=(
            Variant(
                name="runs",
                summary="tokens sorted, tiles of them summed run by run, runs of several tiles joined",
                launch=launch_runs,
                space=RUNS_SPACE,
                default=runs_default,
                fits=fits_runs,
            ),
        ),
        peers={
            "torch": eager(backward_reference),
            "torch.compile": compiled(backward_reference),
            "liger": Peer(_prepare_liger_backward, requires="liger_kernel"),
        },
        bytes=lambda c: {
            "index": c["m"] * element_size("int64"),
            "dy": c["m"] * c["n"] * element_size(c.dtype),
            "dweight": c["v"] * c["n"] * element_size(c.dtype),
        },
        flops=lambda c: {"sum": c["m"] * c["n"]},
        reduction=_longest_run,
    ),
)
