"""What grouped products are checked and measured on: formulas by torch, inputs, peers, cases and what they cost."""

import dataclasses
import math

import torch
from atlas.declaration import GPU, Case, case, normal

from kernels.common.products import fitting, operand_bytes

DTYPES = ("fp32", "fp16", "bf16")


def reference(a, b, offs):
    """A product for each group, as one writes it without such a kernel: the ends are fetched from the device."""
    c = a.new_zeros((a.shape[0], b.shape[2]))
    start = 0
    for group, end in enumerate(offs.tolist()):
        c[start:end] = a[start:end] @ b[group]
        start = end
    return c


def backward_reference(a, b, offs, dc):
    da, db = torch.zeros_like(a), torch.zeros_like(b)
    start = 0
    for group, end in enumerate(offs.tolist()):
        da[start:end] = dc[start:end] @ b[group].t()
        db[group] = a[start:end].t() @ dc[start:end]
        start = end
    return da, db


def torch_grouped(a, b, offs):
    return torch._grouped_mm(a, b, offs=offs)


def only_bf16(peer):
    """A peer that is torch's kernel, which takes bf16 and rows of whole 16 bytes."""
    return dataclasses.replace(
        peer, handles=lambda c: "" if takes(c) else "torch._grouped_mm takes bf16, and sizes that 8 divides"
    )


def takes(problem: Case) -> bool:
    """Whether torch's kernel takes a case."""
    return problem.dtype == "bf16" and not (problem["n"] % 8 or problem["k"] % 8)


def prepare_loop(a, b, offs):
    """cuBLAS's product of each group, whose rows the host knew beforehand: nothing is fetched from the device."""
    if a.requires_grad or b.requires_grad:
        raise NotImplementedError("products that are written in place have no gradient")
    c = a.new_zeros((a.shape[0], b.shape[2]))
    groups = [(a[rows], b[group], c[rows]) for group, rows in _rows_of(offs)]

    def multiply():
        for rows_of_a, factor, rows_of_c in groups:
            torch.mm(rows_of_a, factor, out=rows_of_c)
        return c

    return multiply


def prepare_backward_loop(a, b, offs, dc):
    """Both gradients of :func:`prepare_loop`'s products; of a group without rows the matrix' is 0, and is written."""
    da, db = torch.zeros_like(a), torch.zeros_like(b)
    groups = [(a[rows], b[group], dc[rows], da[rows], db[group]) for group, rows in _rows_of(offs)]

    ends = torch.tensor([0, *offs.tolist()])
    without = [db[start:end] for start, end in _runs((ends[1:] <= ends[:-1]).tolist())]

    def multiply():
        for zeros in without:
            zeros.zero_()
        for rows_of_a, factor, rows_of_dc, rows_of_da, of_factor in groups:
            torch.mm(rows_of_dc, factor.t(), out=rows_of_da)
            torch.mm(rows_of_a.t(), rows_of_dc, out=of_factor)
        return da, db

    return multiply


def _runs(flags):
    """(first, end) of each run of true flags: one call zeroes neighbours."""
    edges = [False, *flags, False]
    turns = [at for at in range(len(flags) + 1) if edges[at] != edges[at + 1]]
    return list(zip(turns[::2], turns[1::2], strict=True))


def _rows_of(offs):
    """(a group, a slice of its rows) of the groups that have any."""
    ends = offs.tolist()
    return [
        (group, slice(start, end))
        for group, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
        if end > start
    ]


def inputs(problem: Case, device, generator):
    groups, m, n, k = (problem[name] for name in ("groups", "m", "n", "k"))
    draw = normal(problem, device, generator)
    ends = torch.tensor(_ends(problem["spread"], groups, m), dtype=torch.int32).to(device)
    return {"a": draw(m, k), "b": draw(groups, k, n) * (1 / math.sqrt(k)), "offs": ends}


def _ends(spread, groups, m):
    """Ends of groups: of one size; each half as long as the one before; or ragged, with empty ones and a rest."""
    if spread == "even":
        return [m * (group + 1) // groups for group in range(groups)]
    if spread == "skewed":
        return [m - (m >> (group + 1)) if group + 1 < groups else m for group in range(groups)]
    odd = [0 if group % 3 == 1 else 1 + (7 * group) % 5 for group in range(groups)]
    used = m - m // 8
    return [used * sum(odd[: group + 1]) // max(sum(odd), 1) for group in range(groups)]


def backward_inputs(problem: Case, device, generator):
    forward = inputs(problem, device, generator)
    return {**forward, "dc": normal(problem, device, generator)(problem["m"], problem["n"])}


def least_bytes(problem: Case) -> dict[str, float]:
    one = operand_bytes(problem)
    return one | {"b": problem["groups"] * one["b"]}


def backward_bytes(problem: Case) -> dict[str, float]:
    forward = least_bytes(problem)
    return {"a, da": 2 * forward["a"], "b, db": 2 * forward["b"], "dc": forward["c"]}


def flops(problem: Case) -> dict[str, float]:
    return {"a @ b": 2 * problem["m"] * problem["n"] * problem["k"]}


def sweep(gpu: GPU) -> list[Case]:
    shapes = (
        ("even", 8, 8192, 14336, 4096),  # Mixtral's eight experts of 4096 x 14336, 4096 tokens of two each
        ("skewed", 8, 8192, 14336, 4096),
        ("even", 8, 8192, 4096, 14336),  # and down
        ("even", 8, 1024, 14336, 4096),  # few tokens: the weights are the cost
        ("even", 64, 24576, 1408, 2048),  # DeepSeek's 64 experts of 2048 x 1408, 4096 tokens of six each
        ("skewed", 64, 24576, 1408, 2048),
        ("even", 64, 24576, 2048, 1408),  # and down
        ("even", 64, 3072, 1408, 2048),
    )
    cases = [case("bf16", spread=spread, groups=groups, m=m, n=n, k=k) for spread, groups, m, n, k in shapes]
    cases.append(case("fp16", "for GPUs without bf16", spread="even", groups=64, m=3072, n=1408, k=2048))
    return fitting(cases, backward_bytes, gpu)


MAX_AUTOTUNED = tuple(case("bf16", spread="even", groups=64, m=m, n=1408, k=2048) for m in (24576, 3072))
"""On which torch.compile tunes a backward pass, whose two products take it twice as long as a forward one."""

EDGE_CASES = tuple(
    case(dtype, reason, spread=spread, groups=groups, m=m, n=n, k=k)
    for dtype in DTYPES
    for spread, groups, (m, n, k), reason in (
        ("even", 1, (1, 1, 1), "one element of each, one group"),
        ("even", 2, (128, 64, 32), "whole tiles only"),
        ("ragged", 7, (80, 72, 32), "empty groups, groups that end within a tile, and rows of no group"),
        ("ragged", 4, (70, 65, 33), "tails everywhere, strides that allow no wide loads"),
        ("skewed", 5, (41, 48, 24), "a long group and short ones; a tail in k"),
        ("even", 16, (9, 32, 16), "more groups than rows"),
        ("ragged", 3, (488, 72, 40), "long groups and an empty one, which end within a tile; tails in n and k"),
        ("skewed", 2, (4184, 72, 40), "groups so long that warps share the tiles of their sums; tails everywhere"),
    )
) + tuple(
    case("bf16", "tiles of a group alone and tiles that it ends in, by turns in one program; sums of one step",
         spread="even", groups=14, m=14 * 300, n=n, k=k)
    for n, k in ((16, 1024), (1024, 16))
)  # fmt: skip

HUGE_CASES = (
    case("bf16", "offsets into a beyond 2^31", spread="skewed", groups=3, m=2**18 + 1, n=16, k=8192),
    case("bf16", "offsets into c beyond 2^31", spread="skewed", groups=3, m=2**18 + 1, n=8192, k=16),
)
