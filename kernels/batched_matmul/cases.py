"""What bmm is checked and measured on: its inputs, its cases and what they cost."""

import torch
from atlas.declaration import GPU, Case, case

from kernels.common.products import drawn_operands, fitting, operand_bytes

DTYPES = ("fp32", "tf32", "fp16", "bf16")


def reference(a, b, tf32):
    return torch.bmm(a, b)


def inputs(problem: Case, device, generator):
    return drawn_operands(problem, (problem["b"],), device, generator)


def least_bytes(problem: Case) -> dict[str, float]:
    return {name: problem["b"] * one for name, one in operand_bytes(problem).items()}


def sweep(gpu: GPU) -> list[Case]:
    cases = [
        case("bf16", "more small products than SMs", b=512, m=128, n=128, k=128),
        case("bf16", "large products, few of them", b=16, m=1024, n=1024, k=1024),
        case("bf16", "by columns, as queries times keys", b=64, m=2048, n=2048, k=128, layout="NT"),
        case("bf16", "a long sum, as weights times values", b=64, m=2048, n=128, k=2048),
        case("bf16", "a tensor core's peak", b=4, m=4096, n=4096, k=4096),
        case("bf16", "rows off 16 bytes", b=8, m=1024, n=577, k=333),
        case("bf16", "scores of a picture's patches", b=96, m=197, n=197, k=64, layout="NT"),
        case("fp16", b=16, m=1024, n=1024, k=1024),
        case("tf32", b=16, m=1024, n=1024, k=1024),
        case("fp32", b=16, m=512, n=512, k=512),
        case("fp32", "columns of both along k, as queries times keys", b=8, m=1024, n=1024, k=256, layout="NT"),
    ]
    return fitting(cases, least_bytes, gpu)


MAX_AUTOTUNED = (
    case("bf16", b=64, m=2048, n=2048, k=128, layout="NT"),
    case("bf16", b=8, m=1024, n=577, k=333),
)
"""A product of short sums, and one that cuBLAS reads element by element: its rows are off 16 bytes."""

EDGE_CASES = (
    *(
        case(dtype, reason, b=b, m=m, n=n, k=k)
        for dtype in ("fp32", "fp16", "bf16")
        for (b, m, n, k), reason in (
            ((1, 1, 1, 1), "one element of each"),
            ((3, 33, 65, 129), "tails everywhere, products that begin off 16 bytes"),
            ((2, 128, 128, 64), "whole tiles only"),
            ((5, 24, 40, 72), "a tile's edge is another product's first rows"),
            ((2, 130, 24, 7), "k smaller than any block of it"),
        )
    ),
    *(
        case("fp16", f"either layout and tails: {layout}", b=2, m=72, n=136, k=200, layout=layout)
        for layout in ("NT", "TN", "TT")
    ),
    *(
        case("bf16", f"rows off 16 bytes, and enough to be copied: {layout}", b=3, m=132, n=69, k=333, layout=layout)
        for layout in ("NN", "TT")
    ),
    case("bf16", "few tiles, a long sum: deep blocks, or clusters, with tails", b=3, m=72, n=136, k=840),
    *(
        case("bf16", f"the same of copies of rows off 16 bytes: {layout}", b=3, m=69, n=104, k=1033, layout=layout)
        for layout in ("NN", "TN")
    ),
    case("fp32", "a short sum, half of a tile's columns: two warps", b=50, m=200, n=80, k=40),
    *(
        case("fp32", f"products with tails, terms made by each program: {layout}", b=b, m=m, n=n, k=k, layout=layout)
        for b, m, n, k, layout in (
            (84, 200, 48, 80, "NN"),
            (112, 130, 33, 112, "NT"),
            (84, 200, 96, 77, "NN"),
            (5, 72, 33, 80, "NT"),
            (5, 72, 48, 77, "NN"),
        )
    ),
    *(
        case(dtype, f"blocks through registers, tiles that overlap at the ends: {layout}", **sizes, layout=layout)
        for dtype, sizes, layouts in (
            ("fp32", {"b": 24, "m": 131, "n": 260, "k": 77}, ("NN", "NT", "TN", "TT")),
            ("fp32", {"b": 30, "m": 128, "n": 256, "k": 48}, ("NT", "TT")),
            ("fp32", {"b": 70, "m": 144, "n": 96, "k": 80}, ("TT",)),
            ("tf32", {"b": 64, "m": 131, "n": 77, "k": 83}, ("NN", "NT", "TN", "TT")),
        )
        for layout in layouts
    ),
    case("tf32", "10 bits of mantissa", b=2, m=72, n=136, k=200),
    case("tf32", "rows off 16 bytes", b=3, m=69, n=77, k=131),
    *(
        case(
            "tf32",
            f"small ones, not copied along K, in tiles of more rows: {layout}",
            b=8,
            m=m,
            n=n,
            k=k,
            layout=layout,
        )
        for m, n, k, layout in ((577, 77, 99, "TN"), (577, 99, 77, "NT"), (400, 96, 80, "NN"))
    ),
    *(
        case(
            "tf32",
            f"many products, operands along K and others that are copied: {layout}",
            b=80,
            m=132,
            n=72,
            k=268,
            layout=layout,
        )
        for layout in ("NN", "NT", "TT", "TN")
    ),
    case("tf32", "the same with rows off 16 bytes", b=70, m=69, n=133, k=259),
    *(
        case("fp32", f"terms of bf16, tails beside the next product: {layout}", b=4, m=m, n=n, k=k, layout=layout)
        for m, n, k, layout in ((1021, 509, 1037, "NN"), (1020, 508, 1040, "TT"))
    ),
    *(
        case(
            "fp32",
            f"tiles and blocks of K with tails, beside the next product: {layout}",
            b=3,
            m=72,
            n=136,
            k=76,
            layout=layout,
        )
        for layout in ("NN", "NT", "TN", "TT")
    ),
    *(
        case("fp32", f"rows off 16 bytes and a long sum, read singly: {layout}", b=3, m=72, n=69, k=197, layout=layout)
        for layout in ("NN", "NT", "TN", "TT")
    ),
)

HUGE_CASES = (case("bf16", "offsets into A and C beyond 2^31, between products", b=2**15 + 8, m=512, n=128, k=136),)
