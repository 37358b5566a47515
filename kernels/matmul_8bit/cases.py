"""What products of 8 bits are checked and measured on: formulas by torch, inputs, cases and what they cost."""

import torch
from atlas.declaration import GPU, Case, case, torch_dtype

from kernels.common.products import fitting

from .tiled import FP8

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def reference(a, b, scale_a, scale_b, bias, fast):
    product = a.double() @ b.double()
    if scale_a is None:
        return product.to(torch.int32)
    product = product * scale_a * scale_b
    return product if bias is None else product + bias


def by_torch(a, b, scale_a, scale_b, bias, fast):
    """What torch offers for each: its product of 8 bits, and for int8 the scales as operations of their own."""
    if scale_a is None:
        return torch._int_mm(a, b)
    if a.dtype in FP8 and a.device.type == "cuda":
        return torch._scaled_mm(a, b, scale_a, scale_b, bias, out_dtype=torch.bfloat16, use_fast_accum=fast)
    product = torch._int_mm(a, b) if a.dtype == torch.int8 else a.float() @ b.float()
    product = product * scale_a * scale_b
    return (product if bias is None else product + bias).to(torch.bfloat16)


def call(function, a, b, scale_a, scale_b, bias, fast):
    """The public function on a pass's inputs; products without scales are int_mm's."""
    from . import int_mm  # which is defined from the declaration on

    return int_mm(a, b) if scale_a is None else function(a, b, scale_a, scale_b, bias, use_fast_accum=fast)


def inputs(problem: Case, device, generator):
    m, n, k, scales = problem["m"], problem["n"], problem["k"], problem["scales"]
    dtype, flags = torch_dtype(problem.dtype), dict(problem.sizes)

    def draw(rows, columns, dtype):
        if dtype == torch.int8:
            return torch.randint(-128, 128, (rows, columns), dtype=dtype, device=device, generator=generator)
        numbers = torch.rand if flags.get("positive") else torch.randn
        return numbers((rows, columns), device=device, generator=generator).to(dtype)

    def scale(*shape):  # such that C is of the order of sqrt(k), as the bias is of 1
        if scales == "none":
            return None
        return (0.5 + torch.rand(shape, device=device, generator=generator)) / (64 if dtype == torch.int8 else 1)

    return {
        "a": draw(m, k, dtype),
        "b": draw(n, k, torch.int8 if dtype == torch.int8 else E4M3).t(),
        "scale_a": scale(m, 1) if scales == "row" else scale(),
        "scale_b": scale(1, n) if scales == "row" else scale(),
        "bias": draw(1, n, torch.bfloat16)[0] if flags.get("bias") else None,
        "fast": flags.get("fast", False),
    }


def least_bytes(problem: Case) -> dict[str, float]:
    m, n, k = problem["m"], problem["n"], problem["k"]
    scales = {"none": 0, "tensor": 8, "row": 4 * (m + n)}[problem["scales"]]
    return {"a": m * k, "b": k * n, "scales": scales, "c": m * n * (4 if problem["scales"] == "none" else 2)}


def sweep(gpu: GPU) -> list[Case]:
    cases = [case("fp8e4m3", m=n, n=n, k=n, scales="tensor", fast=True) for n in (1024, 2048, 4096, 8192)]
    cases += [
        case("fp8e4m3", "partial sums in fp32", m=4096, n=4096, k=4096, scales="tensor", fast=False),
        case("fp8e4m3", "partial sums in fp32", m=8192, n=8192, k=8192, scales="tensor", fast=False),
        case("fp8e4m3", "feed-forward, up, of a model 4096 wide", m=4096, n=14336, k=4096, scales="row", fast=True),
        case("fp8e4m3", "the same, partial sums in fp32", m=4096, n=14336, k=4096, scales="row", fast=False),
        case("fp8e4m3", "feed-forward, down: the long sum", m=4096, n=4096, k=14336, scales="row", fast=True),
        case("fp8e4m3", "16 tokens at once: reads the weights", m=16, n=8192, k=8192, scales="row", fast=True),
        case("fp8e5m2", "gradients times weights", m=4096, n=4096, k=4096, scales="tensor", fast=True),
    ]
    cases += [case("int8", m=n, n=n, k=n, scales="none") for n in (1024, 4096, 8192)]
    cases.append(case("int8", "tens of tokens: few tiles, a long sum", m=32, n=4096, k=4096, scales="row"))
    cases.append(case("int8", "scaled in the epilogue, C in bf16", m=4096, n=14336, k=4096, scales="row"))
    return fitting(cases, least_bytes, gpu)


def tuned_by_torch(problem: Case) -> bool:
    """Cases on which torch.compile may tune products of Triton's beside cuBLAS's: those where cuBLAS is slow."""
    return problem["m"] == 16 or (problem.dtype == "int8" and problem["m"] == 4096)


_FORMS = (
    ("fp8e4m3", {"scales": "tensor", "fast": True}),
    ("fp8e4m3", {"scales": "row", "fast": False, "bias": True}),
    ("fp8e5m2", {"scales": "row", "fast": True}),
    ("int8", {"scales": "none"}),
    ("int8", {"scales": "row", "bias": True}),
)

_SHAPES = (
    ((1, 1, 1), "one element of each"),
    ((128, 128, 256), "whole tiles only; twice as many elements of k as are summed without promotion"),
    ((70, 144, 160), "tails in m, n and k in rows aligned to 16 bytes, as the copy engine takes them"),
    ((33, 65, 129), "tails everywhere, strides that allow no wide loads"),
    ((48, 40, 7), "k smaller than any block of it"),
    ((1, 96, 128), "a single row"),
    ((128, 1, 96), "a single column"),
    ((16, 528, 64), "more columns of tiles than rows: the last group is not full"),
    ((1100, 32, 16), "more rows of tiles than a group has"),
    ((1100, 1168, 160), "a tile of 128 x 128 for most SMs; tails in m, n and k"),
    ((1100, 3728, 160), "more tiles of 128 x 128 than SMs, the last of them cut in two; tails in m, n and k"),
)

_PARTS = {"m": 20, "n": 72, "k": 2064}
_PARTS_REASON = "few tiles and a long sum: K in parts, the last one shorter"
_DECIDED = {"scales": "tensor", "fast": False, "positive": True}
"""Sums far from 0: what an infinite scale makes of one hangs on its sign, which partial sums in few bits may miss."""

_CLUSTERS = (
    ("int8", {"m": 200, "n": 24, "k": 1296, "scales": "none"}, "few columns"),
    ("fp8e5m2", {"m": 300, "n": 12, "k": 2064, "scales": "row", "fast": False, "bias": True}, "fewer, off 16 bytes"),
    ("fp8e4m3", {"m": 250, "n": 1100, "k": 1040, "scales": "row", "fast": False}, "a program has all of it"),
    ("int8", {"m": 250, "n": 1100, "k": 2064, "scales": "row", "bias": True}, "a hundred rows, in wide tiles"),
)

_LONG = {"m": 64, "n": 64, "k": 4096, "scales": "tensor", "fast": False, "positive": True}

EDGE_CASES = (
    *(case(dtype, reason, m=m, n=n, k=k, **flags) for (m, n, k), reason in _SHAPES for dtype, flags in _FORMS),
    *(case(dtype, _PARTS_REASON, **_PARTS, **flags) for dtype, flags in (("fp8e4m3", _DECIDED), *_FORMS[1:])),
    *(case(dtype, f"few tiles, whose sums a cluster adds: {reason}", **flags) for dtype, flags, reason in _CLUSTERS),
    case("fp8e4m3", "a sum that only grows: of it the tensor cores by themselves lose several percent", **_LONG),
)

HUGE_CASES = (
    case("fp8e4m3", "offsets into A beyond 2^31", m=2**18 + 1, n=16, k=8192, scales="row", fast=True),
    case("int8", "offsets into C beyond 2^31", m=2**18 + 1, n=8192, k=16, scales="none"),
)
