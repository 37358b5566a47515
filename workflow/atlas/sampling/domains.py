"""The domain of each kernel: a case drawn at random among those that users call it with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from ..declaration import Case, case

WIDTHS = (256, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1536, 1600, 2048, 2304, 2560, 2880, 3072, 3584, 4096, 4608,
          5120, 5376, 6144, 6656, 7168, 8192, 12288, 16384)  # fmt: skip
"""Hidden sizes of published models."""
FEED_FORWARD = (1024, 1408, 1536, 2048, 3072, 4864, 5504, 5632, 6912, 8192, 8960, 9728, 10240, 11008, 13824, 14336,
                16384, 18944, 22016, 28672)  # fmt: skip
"""Inner sizes of their feed-forward layers."""
VOCABULARIES = (30522, 32000, 32128, 49152, 50257, 50304, 65024, 100277, 102400, 128256, 151936, 256000)
"""Classes of their losses and rows of their embeddings."""
EXPERTS = ((8, 14336, 4096), (8, 4096, 14336), (64, 1408, 2048), (64, 2048, 1408), (128, 768, 2048), (16, 8192, 5120),
           (60, 1408, 2048), (32, 2880, 2880))  # fmt: skip
"""Experts of published mixtures: how many, and the sizes of each."""
HEADS = ((12, 12), (16, 16), (25, 25), (32, 32), (32, 8), (32, 4), (28, 4), (40, 8), (64, 8), (48, 8), (14, 2), (24, 8))
"""Heads of queries, and of keys and values."""
HEAD_DIMS = (32, 64, 64, 72, 80, 96, 112, 128, 128, 128, 192, 256)

Domain = Callable[[Random], Case]


def log_uniform(random: Random, low: int, high: int, multiple: int = 1) -> int:
    """An integer between ``low`` and ``high``, a multiple of ``multiple``, evenly spread in its logarithm."""
    drawn = math.exp(random.uniform(math.log(low), math.log(high)))
    return max(low, round(drawn / multiple) * multiple)


def tokens(random: Random, low: int = 1, high: int = 16384) -> int:
    """Rows of a batch: a power of two half of the time, else any number."""
    drawn = log_uniform(random, low, high)
    return min(high, max(low, 1 << round(math.log2(drawn)))) if random.random() < 0.5 else drawn


def size(random: Random, usual: Sequence[int], low: int, high: int) -> int:
    """Mostly a usual size; else any, odd ones among them."""
    return random.choice(usual) if random.random() < 0.75 else log_uniform(random, low, high)


def dtype(random: Random, *others: str) -> str:
    """bf16 mostly."""
    return random.choice(("bf16", "bf16", "bf16", "fp16", *(others or ("fp32",))))


def drawn(kernel: str, random: Random) -> Case:
    """A case of the kernel's domain; KeyError for a kernel that has none."""
    return DOMAINS[kernel](random)


def _elements(random: Random) -> Case:
    return case(dtype(random), n=log_uniform(random, 2**10, 2**27, random.choice((1, 8, 1024))))


def _matrix(random: Random, **flags: Any) -> dict[str, int]:
    return {**flags, "m": tokens(random), "n": size(random, (*WIDTHS, *FEED_FORWARD), 16, 30_000)}


def _activation(random: Random) -> Case:
    kind = random.choice(("silu", "gelu", "gelu_tanh", "swiglu", "swiglu"))
    strided = kind == "swiglu" and random.random() < 0.5
    return case(dtype(random), kind=kind, strided=strided, m=tokens(random), n=size(random, FEED_FORWARD, 64, 30_000))


def _dropout(random: Random) -> Case:
    return case(dtype(random), m=tokens(random), n=size(random, WIDTHS, 64, 20_000))


def _multiply_add(random: Random) -> Case:
    return case(dtype(random), m=tokens(random), n=size(random, WIDTHS, 64, 20_000), gaps=random.random() < 0.3)


def _broadcast(random: Random) -> Case:
    sums = (("add", "fr"), ("add", "fc"), ("add", "cr"), ("add", "gf"), ("add", "fs"))
    products = (("multiply_add", "rfr"), ("multiply_add", "fcr"), ("swiglu", "fr"), ("swiglu", "fc"))
    op, of = random.choice((*sums, *products))
    return case(dtype(random), m=tokens(random), n=size(random, (*WIDTHS, *FEED_FORWARD), 16, 30_000), op=op, of=of)


def _reduction(random: Random) -> Case:
    op = random.choice(("sum", "mean", "amax", "max", "sum"))
    kind = random.choice(("all", "last", "first", "middle", "apart"))
    if kind == "apart":
        return _reduction_apart(random, op)
    if kind == "all":
        sizes = (1, log_uniform(random, 2**12, 2**27), 1)
    elif kind == "last":
        sizes = (tokens(random, 1, 2**17), log_uniform(random, 8, 50_000), 1)
    elif kind == "first":
        sizes = (1, tokens(random, 16, 2**16), log_uniform(random, 4, 12_288, random.choice((1, 8))))
    else:
        sizes = (
            tokens(random, 2, 512),
            log_uniform(random, 4, 4096),
            log_uniform(random, 4, 4096, random.choice((1, 8))),
        )
    outer, n, inner = sizes
    while outer * n * inner > 2**28:
        outer, n = max(1, outer // 2), max(2, n // 2)
    return case(dtype(random), outer=outer, n=n, inner=inner, op=op)


def _reduction_apart(random: Random, op: str) -> Case:
    """Each channel of images or sequences, each head of many, or rows and columns of a slice."""
    far, between, length, columns, gap = random.choice(
        (
            (tokens(random, 2, 256), random.choice((64, 256, 512, 2048)), random.choice((49, 196, 784, 3136)), 1, 0),
            (tokens(random, 2, 64), tokens(random, 64, 4096), random.choice((8, 16, 32)), random.choice((64, 128)), 0),
            (1, tokens(random, 64, 65536), size(random, WIDTHS, 32, 20_000), 1, random.choice((8, 24, 64))),
            (1, tokens(random, 1, 64), tokens(random, 64, 4096), random.choice(WIDTHS), random.choice((8, 64))),
        )
    )
    op = "amax" if op == "max" and far > 1 else op
    while far * between * length * columns > 2**28:
        far, between, length = max(1, far // 2), max(1, between // 2), max(2, length // 2)
    n, inner = far * length, between * columns
    return case(dtype(random), outer=1, n=n, inner=inner, op=op, far=far, between=between, gap=gap)


def _softmax(random: Random) -> Case:
    if random.random() < 0.3:
        length = random.choice((64, 77, 128, 197, 256, 384, 512, 1024, 2048))
        heads = random.choice((8, 12, 16, 96, 128))
        flags = random.choice(({"causal": True}, {"mask": "bool"}, {"mask": "added"}))
        return case(dtype(random), **flags, q=length, m=heads * length, n=length)
    rows, columns = tokens(random, 1, 2**17), log_uniform(random, 8, 130_000, random.choice((1, 8)))
    while rows * columns > 2**28:
        rows //= 2
    flags = {"log": True} if random.random() < 0.3 else {}
    return case(dtype(random), **flags, m=rows, n=columns)


def _layer_norm(random: Random) -> Case:
    flags = {"residual": True} if random.random() < 0.3 else {}
    return case(dtype(random), m=tokens(random, 1, 65536), n=size(random, WIDTHS, 32, 20_000), **flags)


def _rms_norm(random: Random) -> Case:
    if random.random() < 0.2:  # of queries and keys, head by head
        return case(dtype(random), m=tokens(random, 64, 2**18), n=random.choice((64, 80, 96, 128, 256)), residual=False)
    residual = random.random() < 0.4
    return case(dtype(random), m=tokens(random, 1, 65536), n=size(random, WIDTHS, 32, 20_000), residual=residual)


def _layer_norm_linear(random: Random) -> Case:
    return case(dtype(random), m=tokens(random, 1, 8192), n=random.choice(FEED_FORWARD), k=random.choice(WIDTHS[:18]))


def _cross_entropy(random: Random) -> Case:
    flags = {"gradient": True} if random.random() < 0.5 else {}
    rows, classes = tokens(random, 8, 8192), size(random, VOCABULARIES, 10, 130_000)
    while rows * classes > 2**29:
        rows //= 2
    return case(dtype(random), m=rows, n=classes, **flags)


def _weighted_cross_entropy(random: Random) -> Case:
    """Pixels and other places, with weights or without; rows of weighted classes; students of a teacher."""
    kind = random.choice(("places", "places", "rows", "teacher"))
    if kind == "places":
        batch, side = tokens(random, 1, 64), random.choice((14, 32, 56, 128, 224, 256, 512))
        b, n, s = batch, random.choice((2, 10, 19, 21, 91, 150, 256, 1000)), side * side
    else:
        b, n, s = tokens(random, 8, 8192), size(random, VOCABULARIES, 10, 130_000), 1
    while b * n * s > 2**28:
        b, s = (b // 2, s) if b > 1 else (b, s // 2)
    probabilities = kind == "teacher" or (kind == "places" and random.random() < 0.2)
    weight = not probabilities and (kind == "rows" or random.random() < 0.5)
    return case(dtype(random), b=b, n=n, s=s, last=s == 1, weight=weight, probabilities=probabilities)


def _linear_cross_entropy(random: Random) -> Case:
    n = random.choice(VOCABULARIES[:10])
    return case(dtype(random, "bf16"), m=tokens(random, 128, 8192), k=random.choice(WIDTHS[4:18]), n=n, gradient=True)


def _rope(random: Random) -> Case:
    heads, groups = random.choice(HEADS)
    seq = random.choice((1, 128, 512, 1000, 2048, 4096))
    batch = max(1, min(tokens(random, 1, 64), 32768 // seq))
    head_dim = random.choice((64, 80, 96, 128, 256))
    return case(
        dtype(random), batch=batch, seq=seq, heads=heads, kv_heads=groups, head_dim=head_dim,
        interleaved=random.random() < 0.3, heads_first=random.random() < 0.3,
    )  # fmt: skip


def _embedding(random: Random) -> Case:
    return case(dtype(random), m=tokens(random, 1, 65536), v=random.choice(VOCABULARIES), n=random.choice(WIDTHS[:22]))


def _product(random: Random) -> tuple[int, int, int]:
    sizes = (*WIDTHS, *FEED_FORWARD)
    m, n, k = tokens(random), random.choice(sizes), random.choice(sizes)
    if random.random() < 0.25:  # off the sizes that descriptors and tensor cores like
        n, k = random.choice(((n + random.randint(1, 7), k), (n, k + random.randint(1, 7)), (50257, min(k, 2048))))
    while m * n * k > 2**40:
        m //= 2
    return max(1, m), n, k


def _matmul(random: Random) -> Case:
    m, n, k = _product(random)
    layout = random.choice(({}, {"layout": "NT"}, {"layout": "NT"}, {"layout": "TN"}))
    name = dtype(random, "fp32", "tf32")
    if name in ("fp32", "tf32"):
        m, n, k = min(m, 4096), min(n, 4096), min(k, 4096)
    return case(name, m=m, n=n, k=k, **layout)


def _batched_matmul(random: Random) -> Case:
    def one() -> int:
        return random.choice((64, 77, 80, 96, 128, 197, 256, 333, 512, 577, 768, 1024))

    b, m, n, k = random.choice((2, 8, 12, 24, 64, 96, 192)), one(), one(), one()
    layout = random.choice(({}, {"layout": "NT"}, {"layout": "TN"}))
    return case(dtype(random, "fp32", "tf32"), b=b, m=m, n=n, k=k, **layout)


def _epilogue(random: Random) -> Case:
    m, n, k = _product(random)
    activation = random.choice(("none", "none", "relu", "gelu", "gelu_tanh", "silu"))
    return case(
        dtype(random, "bf16"), activation=activation, bias=random.random() < 0.6, residual=random.random() < 0.2,
        m=m, n=n, k=k,
    )  # fmt: skip


def _grouped(random: Random) -> Case:
    groups, n, k = random.choice(EXPERTS)
    return case("bf16", spread=random.choice(("even", "skewed")), groups=groups, m=tokens(random, 64, 16384), n=n, k=k)


def _attention(random: Random) -> Case:
    heads, groups = random.choice(HEADS)
    d, causal = random.choice(HEAD_DIMS), random.random() < 0.6
    length = tokens(random, 64, 8192)
    b = max(1, min(32, log_uniform(random, 1, 32), 2**16 // length))
    s = length if causal or random.random() < 0.7 else random.choice((77, 256, 1024))
    return case(random.choice(("bf16", "bf16", "fp16")), b=b, h=heads, g=groups, l=length, s=s, d=d, causal=causal)


def _attention_masked(random: Random) -> Case:
    heads, groups = random.choice(HEADS)
    d, kind = random.choice(HEAD_DIMS), random.choice(("bool keys", "bool", "added", "none", "none"))
    length = tokens(random, 64, 16384 if kind == "none" else 4096)
    b = max(1, min(32, log_uniform(random, 1, 32), (2**16 if kind == "none" else 2**13) // length))
    left = right = 0
    if kind == "none":
        left = log_uniform(random, 16, max(32, length // 2))
        right = random.choice((1, 1, left))
    return case(
        random.choice(("bf16", "bf16", "fp16")), b=b, h=heads, g=groups, l=length, s=length, d=d, mask=kind,
        left=left, right=right,
    )  # fmt: skip


def _attention_mla(random: Random) -> Case:
    d, e = random.choice(((192, 128), (192, 128), (192, 128), (96, 64), (64, 128)))
    heads = random.choice((16, 16, 32, 40, 64, 128))
    length, causal = tokens(random, 64, 8192), random.random() < 0.8
    b = max(1, min(32, log_uniform(random, 1, 32), 2**16 // length))
    return case(
        random.choice(("bf16", "bf16", "fp16")), b=b, h=heads, g=heads, l=length, s=length, d=d, causal=causal, e=e
    )  # fmt: skip


def _attention_fp8(random: Random) -> Case:
    heads, groups = random.choice(HEADS)
    length = tokens(random, 256, 8192)
    b = max(1, min(16, 2**15 // length))
    causal = random.random() < 0.6
    return case(
        "fp8e4m3", b=b, h=heads, g=groups, l=length, s=length, d=random.choice((64, 128, 128, 256)), causal=causal
    )


def _decode(random: Random) -> Case:
    heads, groups = random.choice(HEADS)
    batch, seq = tokens(random, 1, 128), tokens(random, 128, 65536)
    while batch * seq > 2**20:
        batch = max(1, batch // 2)
        seq = min(seq, 2**20)
    return case(
        dtype(random, "bf16"), batch=batch, heads=heads, kv_heads=groups, seq=seq,
        queries=random.choice((1, 1, 1, 2, 4)), head_dim=random.choice((64, 80, 96, 128, 128, 128)),
        ragged=random.random() < 0.5,
    )  # fmt: skip


def _8bit(random: Random) -> Case:
    n, k = random.choice((*WIDTHS[6:], *FEED_FORWARD)), random.choice(WIDTHS[6:24])
    flags = random.choice(
        ({"scales": "tensor", "fast": True}, {"scales": "row", "fast": True}, {"scales": "row", "fast": False})
    )
    name = random.choice(("fp8e4m3", "fp8e4m3", "int8"))
    if name == "int8":
        flags = random.choice(({"scales": "none"}, {"scales": "row"}))
    return case(name, m=tokens(random, 17, 8192), n=n // 16 * 16, k=k // 16 * 16, **flags)


def _weights_only(random: Random, group: int, zeros: bool) -> Case:
    n, k = random.choice((*WIDTHS[6:], *FEED_FORWARD)), random.choice(WIDTHS[6:24])
    return case(dtype(random, "bf16"), m=tokens(random, 1, 2048), n=n, k=k // 128 * 128, group=group, zeros=zeros)


DOMAINS: dict[str, Domain] = {
    "activation": _activation,
    "attention": _attention,
    "attention_decode": _decode,
    "attention_fp8": _attention_fp8,
    "attention_masked": _attention_masked,
    "attention_mla": _attention_mla,
    "batched_matmul": _batched_matmul,
    "broadcast": _broadcast,
    "cross_entropy": _cross_entropy,
    "dropout": _dropout,
    "embedding": _embedding,
    "grouped_matmul": _grouped,
    "layer_norm": _layer_norm,
    "layer_norm_linear": _layer_norm_linear,
    "linear_cross_entropy": _linear_cross_entropy,
    "matmul": _matmul,
    "matmul_8bit": _8bit,
    "matmul_epilogue": _epilogue,
    "matmul_w4a16": lambda random: _weights_only(random, random.choice((32, 64, 128, 128)), random.random() < 0.5),
    "matmul_w8a16": lambda random: _weights_only(random, random.choice((0, 0, 128)), False),
    "multiply_add": _multiply_add,
    "reduction": _reduction,
    "rms_norm": _rms_norm,
    "rope": _rope,
    "softmax": _softmax,
    "vector_add": _elements,
    "weighted_cross_entropy": _weighted_cross_entropy,
}
