"""NAME: out = relu(a @ b) of a [m, k] and b [k, n], in fp32, fp16 or bf16, summed in fp32.

Reads a and b and writes out, m k + k n + m n elements; 2 m n k operations, which are what large products cost.
"""

import torch
import triton
import triton.language as tl

from atlas.declaration import Declaration, Pass, Variant, cases, peers
from atlas.declaration.products import as_interpreted
from atlas.operators import Differentiable, Operator, launch


@triton.jit
def _kernel(
    a_ptr, b_ptr, out_ptr, m, n, k, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program owns a tile of BLOCK_M x BLOCK_N; tiles are counted along the rows of out."""
    across = tl.cdiv(n, BLOCK_N)
    offs_m = (tl.program_id(0) // across * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    offs_n = (tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        offs_k = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        in_a, in_b = (offs_m < m) & (offs_k[None, :] < k), (offs_k[:, None] < k) & (offs_n < n)
        # What lies outside adds 0 to the sum.
        a = tl.load(a_ptr + offs_m * stride_am + offs_k[None, :] * stride_ak, mask=in_a, other=0.0)
        b = tl.load(b_ptr + offs_k[:, None] * stride_bk + offs_n * stride_bn, mask=in_b, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    tl.store(out_ptr + offs_m * n + offs_n, tl.maximum(total, 0.0), mask=(offs_m < m) & (offs_n < n))


def _launch(a, b, *, config):
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    a, b = as_interpreted(a), as_interpreted(b)
    grid = (triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]),)
    launch(_kernel, grid, a, b, out, m, n, k, *a.stride(), *b.stride(), **config)
    return out


_SPACE = {"BLOCK_M": (64, 128), "BLOCK_N": (64, 128), "BLOCK_K": (32, 64), "num_warps": (4, 8), "num_stages": (2, 3)}


def _fits(config, problem, gpu):
    tiles = (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"] * cases.element_size(problem.dtype)
    needed = tiles * config["num_stages"]
    return f"{needed} bytes of shared memory, of {gpu.shared_bytes}" if needed > gpu.shared_bytes else ""


def _default(problem, gpu):
    return {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3}


def _inputs(problem, device, generator):
    draw = cases.normal(problem, device, generator)
    return {"a": draw(problem["m"], problem["k"]), "b": draw(problem["k"], problem["n"])}


def _bytes(c):
    size, m, n, k = cases.element_size(c.dtype), c["m"], c["n"], c["k"]
    return {"a": m * k * size, "b": k * n * size, "out": m * n * size}


def _reference(a, b):
    return torch.relu(a @ b)


DECLARATION = Declaration(
    name="NAME",
    family="matmul",
    summary="out = relu(a @ b)",
    cases=cases.sweep("m n k", dict.fromkeys(cases.DTYPES, ((512, 512, 512), (4096, 4096, 4096))), tensors=3),
    edge_cases=cases.edge_cases(
        "m n k",
        (
            (1, 1, 1, "one element"),
            (16, 16, 300, "one tile, and a tail of the sum"),
            (65, 129, 40, "one row and one column more than whole tiles"),
            (64, 64, 64, "whole tiles only: no masks"),
        ),
    ),
    differentiable=("a", "b"),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("out",),
        variants=(
            Variant(
                name="tiled",
                summary="one tile of out a program",
                launch=_launch,
                space=_SPACE,
                default=_default,
                fits=_fits,
            ),
        ),
        peers={"torch": peers.eager(_reference), "torch.compile": peers.compiled(_reference)},
        bytes=_bytes,
        flops=lambda c: {"a @ b": 2 * c["m"] * c["n"] * c["k"]},
        reduction=lambda c: c["k"],
    ),
)
_operator = Operator(
    DECLARATION,
    "forward",
    "(Tensor a, Tensor b) -> Tensor",
    case_of=lambda a, b: cases.case(DECLARATION.dtype_of(a), m=a.shape[0], n=b.shape[1], k=a.shape[1]),
    fake=lambda a, b: a.new_empty(a.shape[0], b.shape[1]),
)
_NAME = Differentiable.by_torch(_operator, _reference)


@DECLARATION.public
def NAME(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """relu(a @ b) of two matrices of one dtype (fp32, fp16, bf16) and device, read through their strides.

    Raises TypeError for other or mixed dtypes, ValueError for what does not fit together.
    """
    DECLARATION.dtype_of(a, b)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or a.device != b.device:
        found = f"{tuple(a.shape)} on {a.device}, {tuple(b.shape)} on {b.device}"
        raise ValueError(f"NAME takes a [m, k] and b [k, n] on one device: {found}")
    if not (a.numel() and b.numel()):
        return _reference(a, b)  # nothing to launch for
    return _NAME(a, b)
