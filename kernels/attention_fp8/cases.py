"""What attention_fp8 is checked and measured on: its formulas by torch, its inputs, its cases and what they cost."""

import functools

import torch
from atlas.declaration import GPU, Case, Peer

from kernels.attention.cases import by_groups, bytes_of, scores_of
from kernels.attention.cases import reference as exact
from kernels.attention.cases import sized as sized_case
from kernels.common.peers import by_flex_attention

E4M3 = torch.float8_e4m3fn


def reference(q, k, v, scales, causal, scale):
    """(out, lse) by the formula, of the numbers that e4m3 holds: the error of having rounded to them is not in it."""
    return exact(*_meant(q, k, v, scales), causal, scale)


def _meant(q, k, v, scales):
    """Q, K and V of float64 as they are meant, times their scales."""
    return [x * by.double()[:, :, None, None] for x, by in zip((q, k, v), scales, strict=True)]


_LEAST_NORMAL = 2.0**-14
"""e4m3's, of a row's largest weight, 256: weights below are rounded as if they were as large."""


def spread(q, k, v, scales, causal, scale):
    """(out's, None): of the terms p_ij v_jd that out_id is a sum of, each rounded with P, the root of the squares' sum.

    An earlier block's weights are rounded by a maximum that is at most the row's: what they lose is no more.
    """
    parts = []
    for q_i, k_i, v_i in by_groups(*_meant(q, k, v, scales)):
        p = torch.softmax(scores_of(q_i, k_i, causal, scale), dim=-1)
        if p.shape[-1]:
            unseen = p == 0
            p = p.clamp_(min=_LEAST_NORMAL * p.amax(dim=-1, keepdim=True)).masked_fill_(unseen, 0.0)
        parts.append((p.square_() @ v_i.square()).sqrt_())
    return torch.cat(parts).view(q.shape), None


def in_bf16(attention):
    """A peer that computes in bf16 what it could have had in the first place: it is not timed at converting to it."""

    def prepare(q, k, v, scales, causal, scale):
        q, k, v = _as_bf16(q, k, v, scales)
        return lambda: attention(q=q, k=k, v=v, causal=causal, scale=scale)

    return Peer(prepare)


def flex_in_bf16(q, k, v, scales, causal, scale):
    """``prepare`` of the same by flex_attention."""
    return by_flex_attention(*_as_bf16(q, k, v, scales), causal, scale)


def _as_bf16(q, k, v, scales):
    return [(x.float() * by[:, :, None, None]).to(torch.bfloat16) for x, by in zip((q, k, v), scales, strict=True)]


def inputs_of(problem: Case, device, generator):
    b, h, g, length, s, d = (problem[name] for name in ("b", "h", "g", "l", "s", "d"))

    def draw(*shape):
        return torch.randn(shape, device=device, generator=generator).to(E4M3)

    def scale(heads):
        return 0.5 + torch.rand((b, heads), device=device, generator=generator)

    # Scales in one tuple, for none is to be infinite: of out times infinity the signs of rounding errors would count.
    tensors = {"q": draw(b, h, length, d), "k": draw(b, g, s, d), "v": draw(b, g, s, d)}
    return tensors | {
        "scales": (scale(h), scale(g), scale(g)),
        "causal": problem["causal"],
        "scale": d**-0.5,
    }


def traffic(problem: Case) -> dict[str, int]:
    """As of attention, but for out, which is of 16 bits."""
    found = bytes_of("q out", "k v")(problem)
    return found | {"out": 2 * found["out"]}


_sized = functools.partial(sized_case, "fp8e4m3")


def sweep(gpu: GPU) -> list[Case]:
    cases = [
        _sized("16 384 tokens of a model 2048 wide", causal, b=16384 // length, h=2048 // d, l=length, d=d)
        for d, length in ((128, 1024), (128, 4096), (128, 16384), (64, 16384), (256, 16384))
        for causal in (False, True)
    ]
    cases.append(_sized("32 heads share 8 of keys", True, b=4, h=32, g=8, l=4096, d=128))
    return [c for c in cases if sum(traffic(c).values()) <= gpu.memory_bytes // 64]


_SHAPES = (
    # Few rows: of large magnitudes a row may hang on which of two scores is larger, and tensor cores have 14 bits.
    ((3, 3, 3, 3, 5, 64, False), "a few queries and keys of several heads, no mask: hard inputs reach all alike"),
    ((1, 1, 1, 1, 2, 128, False), "one query"),
    ((1, 2, 2, 70, 70, 64, True), "a diagonal, and tails on both sides"),
    ((1, 4, 2, 50, 90, 128, True), "more keys than queries; of four heads two share each of two of keys"),
    ((2, 2, 1, 130, 200, 128, False), "several blocks of queries and of keys, tails on both sides"),
    ((1, 1, 1, 200, 333, 64, True), "blocks of keys that only the later of two groups of queries sees"),
    ((1, 1, 1, 128, 256, 64, False), "whole blocks"),
    ((1, 1, 1, 90, 50, 80, True), "more queries than keys under a mask; heads of no power of two"),
    ((1, 1, 1, 24, 140, 256, True), "the largest head"),
    ((1, 2, 1, 33, 65, 7, False), "rows of 7 bytes, which no descriptor describes"),
)

EDGE_CASES = tuple(
    _sized(reason, causal, b=b, h=h, g=g, l=length, s=s, d=d) for (b, h, g, length, s, d, causal), reason in _SHAPES
)

HUGE_CASES = (
    _sized("offsets into queries beyond 2^31", False, b=1, h=2**13 + 8, g=1, l=2**11, s=64, d=128),
    _sized("offsets into keys beyond 2^31, within a head", False, b=1, h=1, l=64, s=2**24 + 3, d=128),
)
