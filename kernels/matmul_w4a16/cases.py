"""What products with weights of 4 bits are checked and measured on: formulas and peers by torch, cases, costs."""

import torch
from atlas.declaration import Case, case, element_size, max_autotune

from kernels.common.packed import DTYPES, of_row_tiles

from .packing import unshuffle_w4


def dequantised(words, scales, zeros, rows, columns, group):
    """Plain torch, in the scales' dtype: exact in float64."""
    q = unshuffle_w4(words, rows, columns).to(scales.dtype).view(rows, columns // group, group)
    z = 8 if zeros is None else of_row_tiles(zeros, rows).to(scales.dtype)[..., None]
    return ((q - z) * of_row_tiles(scales, rows)[..., None]).view(rows, columns)


def _in_natural_order(words, scales, zeros, rows, columns):
    """(q [n, k], scales [n, groups], zeros [n, groups] in the scales' dtype)."""
    q, scales = unshuffle_w4(words, rows, columns), of_row_tiles(scales, rows).contiguous()
    zeros = torch.full_like(scales, 8) if zeros is None else of_row_tiles(zeros, rows).to(scales.dtype).contiguous()
    return q, scales, zeros


def compiled(x, words, scales, zeros, n, group):
    """torch.compile of dequantisation and product, from numbers in their natural order, two in a byte."""
    product, numbers = _product(x, words, scales, zeros, n)
    torch._dynamo.reset()
    fast = torch.compile(product, dynamic=False)
    fast(x, *numbers)
    return lambda: fast(x, *numbers)


def searched(x, words, scales, zeros, n, group):
    """The same by the fastest of Triton's and cuBLAS's products that torch.compile tries."""
    product, (pairs, scales, zeros) = _product(x, words, scales, zeros, n)
    return max_autotune(product, x=x, pairs=pairs, scales=scales, zeros=zeros)


def tuned_by_torch(problem: Case) -> bool:
    """Cases for that: few rows, so that weights are the cost, and rows enough for tensor cores."""
    return problem.dtype == "bf16" and (problem["m"], problem["n"]) in ((16, 8192), (512, 4096))


def _product(x, words, scales, zeros, n):
    """(a function of x and the numbers, the numbers): dequantisation and product."""

    def product(x, pairs, scales, zeros):
        q = torch.stack((pairs & 15, pairs >> 4), -1).view(n, scales.shape[1], -1)
        w = (q.to(x.dtype) - zeros[..., None]) * scales[..., None]
        return torch.nn.functional.linear(x, w.view(n, -1))

    q, scales, zeros = _in_natural_order(words, scales, zeros, n, x.shape[1])
    pairs = (q[:, ::2] | q[:, 1::2] << 4).contiguous()
    return product, (pairs, scales, zeros)


def torch_int4(x, words, scales, zeros, n, group):
    """torch's own kernel, (q - 8) s + c with c = (8 - z) s: bf16 alone, and not on every GPU."""
    if x.dtype != torch.bfloat16 or x.shape[1] % 128 or n % 64:
        raise NotImplementedError("torch's _weight_int4pack_mm is for bf16, k a multiple of 128 and n of 64")
    if x.shape[0] > 64:
        raise NotImplementedError("torch's _weight_int4pack_mm is written for few rows")
    q, scales, zeros = _in_natural_order(words, scales, zeros, n, x.shape[1])
    tiles = torch.ops.aten._convert_weight_to_int4pack((q[:, ::2] << 4 | q[:, 1::2]).contiguous(), 8)
    both = torch.stack((scales, (8 - zeros) * scales), -1).transpose(0, 1).contiguous()
    return lambda: torch.ops.aten._weight_int4pack_mm(x, tiles, group, both)


def sizes(problem: Case, bits: int) -> dict[str, float]:
    """Bytes of x, weights, scales, zero points and y."""
    m, n, k = problem["m"], problem["n"], problem["k"]
    size, groups = element_size(problem.dtype), k // problem["group"] if problem["group"] else 1
    found = {"x": m * k * size, "words": n * k * bits / 8, "scales": n * groups * size, "y": m * n * size}
    return found | ({"zeros": n * groups} if problem["zeros"] else {})


def common_cases(**given):
    """What weights of either width are timed at, with a group size and zero points as given."""
    return [
        *(case("bf16", m=m, n=8192, k=8192, **given) for m in (1, 4, 16, 32, 64, 512, 4096)),
        *(
            case("bf16", reason, m=m, n=n, k=k, **given)
            for m in (1, 16)
            for n, k, reason in (
                (14336, 4096, "feed-forward, up, of a model 4096 wide"),
                (4096, 14336, "feed-forward, down: few rows of weights, a long sum"),
                (28672, 8192, "feed-forward, up, of a model 8192 wide"),
            )
        ),
        case("bf16", "more rows, of x that every program reads, for fewer steps", m=32, n=14336, k=4096, **given),
        *(
            case("bf16", "y has fewer tiles than there are SMs, unless k is cut", m=m, n=4096, k=4096, **given)
            for m in (64, 128, 512)
        ),
    ]


CASES = (
    *common_cases(group=128, zeros=True),
    case("fp16", "symmetric, in fp16", m=1, n=8192, k=8192, group=128, zeros=False),
    case("bf16", "small groups: more scales to read", m=1, n=8192, k=8192, group=32, zeros=True),
)

EDGE_CASES = tuple(
    case(dtype, reason, m=m, n=n, k=k, group=group, zeros=zeros)
    for dtype in DTYPES.values()
    for (m, n, k, group, zeros), reason in (
        ((3, 48, 128, 64, True), "whole tiles of weights, two groups"),
        ((1, 16, 32, 32, True), "half a tile of weights, one row"),
        ((5, 40, 96, 32, True), "tails in m, n and k; two groups in a tile"),
        ((12, 40, 384, 128, True), "9 to 16 rows, tails in m and n; three groups of two tiles"),
        ((16, 40, 1152, 128, True), "k in parts of unequal length; nine groups of two tiles"),
        ((24, 72, 160, 32, True), "17 to 32 rows in groups of 32, half a tile at the end"),
        ((20, 40, 1056, 32, True), "groups of 32 in parts of k, the last of which ends within a tile"),
        ((40, 40, 160, 32, True), "33 to 64 rows in groups of 32: a tile's halves have zero points of their own"),
        ((36, 42, 160, 32, True), "the same, and rows of y that TMA does not write"),
        ((17, 33, 256, 128, False), "symmetric; 17 rows, a tail of one row of weights"),
        (
            (24, 72, 640, 128, True),
            "17 to 32 rows, tails in m and n; five groups in parts of unequal length",
        ),
        ((24, 200, 2112, 64, False), "17 to 32 rows by TMA: tails in m and n; the last of many parts ends past k"),
        ((32, 264, 1696, 32, True), "32 rows: a whole tile; stages in turns, half a stage at the end of k"),
        ((33, 72, 384, 128, True), "33 to 64 rows, of which the last 31 are one again; weights scaled in 16 bits"),
        ((64, 264, 576, 64, False), "64 rows; a tail in n for every block, half a step at the end; symmetric"),
        ((64, 512, 512, 128, True), "64 rows; whole blocks and steps, so that nothing is masked"),
        ((70, 70, 192, 64, True), "more rows than the kernel for few takes; three groups"),
        ((8, 1, 128, 128, True), "one row of weights"),
        ((40, 136, 64, 64, True), "more than 32 rows; rows of y of whole 16 bytes, as TMA writes them; a tail in n"),
        (
            (72, 136, 2112, 64, True),
            "a second tile of 64 rows; unequal parts of k, the last of which ends past k",
        ),
        ((136, 24, 96, 32, False), "a third tile of 64 rows, tails in m, n and k for tiles of 128; three groups"),
        ((264, 72, 1088, 64, False), "a second tile of 256 rows; k in parts"),
        ((40, 70, 384, 128, True), "more than 32 rows, and rows of y that TMA does not write"),
        ((136, 200, 1696, 32, True), "tiles of 64 to 192 rows of W; stages in turns, half a stage at the end of k"),
        ((264, 8, 64, 64, True), "a second tile of 256 rows; fewer weights than a packed tile has"),
        ((40, 1032, 96, 32, True), "the gradient's sum in a cluster, with a tail, and half a tile of its columns"),
        ((136, 1032, 96, 32, True), "the same of more rows, where other kernels cut it"),
        ((20, 72, 17408, 128, True), "a gradient of few rows with more columns than programs of a cluster have"),
        ((200, 200, 96, 32, False), "the gradient by tiles of 128 rows, with tails in m, n and k"),
        ((100, 4232, 96, 32, True), "a tile of 128 rows, and its gradient's sum in a cluster"),
        ((400, 2888, 32, 32, False), "tiles of 256 rows, for the same reason; half a step"),
    )
)
