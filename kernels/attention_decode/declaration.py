"""attention_decode as the project knows it: its cases, the least they cost, references and peers."""

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
    element_size,
    max_autotune,
    searching,
    torch_dtype,
)

from .chunks import launch_chunks
from .even import launch_even
from .spaces import SPLIT_SPACE, fits, reads_whole, split_default, splits, whole_default

_DTYPES = ("bf16", "fp16")


def _problem(dtype, reason, batch, seq, head_dim=128, heads=32, kv_heads=8, queries=1, ragged=False):
    return case(
        dtype, reason, batch=batch, heads=heads, kv_heads=kv_heads, seq=seq, queries=queries, head_dim=head_dim,
        ragged=ragged,
    )  # fmt: skip


def _cases(gpu: GPU) -> list[Case]:
    cases = [
        _problem("bf16", "one user, 16 MiB: launches are the cost", 1, 4096),
        _problem("bf16", "one user, a long document", 1, 16384),
        _problem("bf16", "one user, 128 Ki tokens", 1, 131072),
        _problem("bf16", "a few users", 8, 4096),
        _problem("bf16", "a few users, long", 8, 16384),
        _problem("bf16", "two users, longer", 2, 65536),
        _problem("bf16", "a batch", 32, 4096),
        _problem("bf16", "a batch, long", 32, 16384),
        _problem("bf16", "a large batch: no need to split", 128, 4096),
        _problem("bf16", "lengths from a quarter to all", 32, 16384, ragged=True),
        _problem("bf16", "four tokens tried at once", 16, 16384, queries=4),
        _problem("bf16", "heads of 64", 32, 16384, head_dim=64),
        _problem("fp16", "the other dtype", 8, 16384),
    ]
    return [c for c in cases if sum(_bytes(c).values()) <= gpu.memory_bytes // 16]


_EDGE_CASES = tuple(
    _problem(dtype, reason, batch, seq, head_dim, heads, kv_heads, queries, ragged)
    for dtype in _DTYPES
    for batch, seq, head_dim, heads, kv_heads, queries, ragged, reason in (
        (1, 1, 64, 4, 1, 1, False, "a cache of one row: the token itself"),
        (1, 64, 64, 4, 2, 1, False, "whole blocks only"),
        (2, 203, 64, 8, 2, 1, False, "a tail in the last block"),
        (3, 300, 64, 4, 1, 1, True, "lengths that differ: chunks behind a sequence's end"),
        (2, 130, 64, 4, 2, 4, True, "four tokens, whose last keys differ, across the border of a block"),
        (2, 70, 128, 3, 3, 1, False, "as many heads in the cache as in q: one row of sixteen is used"),
        (1, 96, 80, 4, 2, 1, False, "a head dimension that is no power of two, in two parts"),
        (2, 203, 104, 4, 2, 2, True, "one whose two parts would be as wide as one"),
        (2, 150, 72, 4, 2, 1, False, "one whose second part has columns that are not there"),
        (1, 90, 64, 20, 1, 1, False, "more than sixteen heads share one of the cache"),
    )
)

_HUGE_CASES = (
    _problem("bf16", "offsets into K and V beyond 2^31", 3, 2**20 + 5, heads=8, ragged=True),
    _problem("bf16", "the same of as many caches as SMs, each read by one program", 16, 2**17 + 5),
)


def _inputs(problem: Case, device, generator):
    def draw(heads, length):
        shape = (problem["batch"], heads, length, problem["head_dim"])
        return torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)

    return {
        "q": draw(problem["heads"], problem["queries"]),
        "k": draw(problem["kv_heads"], problem["seq"]),
        "v": draw(problem["kv_heads"], problem["seq"]),
        "lens": _lens(problem, device),
        "scale": problem["head_dim"] ** -0.5,
    }


def _lens(problem: Case, device):
    """Lengths from all of the cache down to a quarter of it; None where all are full."""
    if not problem["ragged"]:
        return None
    if torch.device(device).type == "meta":
        return torch.empty(problem["batch"], dtype=torch.int32, device=device)
    return torch.tensor(_lengths(problem), dtype=torch.int32, device=device)


def _lengths(problem: Case) -> list[int]:
    batch, seq = problem["batch"], problem["seq"]
    if not problem["ragged"]:
        return [seq] * batch
    least = max(seq // 4, problem["queries"])
    return [seq - (seq - least) * i // max(batch - 1, 1) for i in range(batch)]


def _bytes(problem: Case) -> dict[str, float]:
    """The filled part of the cache, q, and what is written."""
    size, rows = element_size(problem.dtype), problem["batch"] * problem["heads"] * problem["queries"]
    cache = sum(_lengths(problem)) * problem["kv_heads"] * problem["head_dim"] * size
    small = rows * problem["head_dim"] * size
    return {"k": cache, "v": cache, "q": small, "out": small, "lse": rows * 4}


def _flops(problem: Case) -> dict[str, float]:
    products = 2 * sum(_lengths(problem)) * problem["heads"] * problem["queries"] * problem["head_dim"]
    return {"q @ k": products, "p @ v": products}


def _visible(q, k, lens):
    """Which keys each token sees, [b, 1, t, s]."""
    queries, seq = q.shape[2], k.shape[2]
    length = torch.full((q.shape[0],), seq, device=q.device) if lens is None else lens.clamp(max=seq)
    limit = length[:, None] - (queries - 1) + torch.arange(queries, device=q.device)
    return (torch.arange(seq, device=q.device) < limit[..., None])[:, None]


def reference(q, k, v, lens, scale):
    batch, heads, queries, head_dim = q.shape
    rows = q.reshape(batch, k.shape[1], -1, head_dim)  # the heads that share one of the cache
    mask = (
        _visible(q, k, lens).expand(batch, heads // k.shape[1], queries, k.shape[2]).reshape(batch, 1, -1, k.shape[2])
    )
    scores = (rows @ k.mT * scale).masked_fill(~mask, -math.inf)
    lse = scores.logsumexp(-1)
    out = (scores - lse.clamp(min=-1e30)[..., None]).exp() @ v
    return out.reshape(q.shape), lse.reshape(q.shape[:3])


def _masked(q, k, v, lens, scale):
    """Keyword arguments of ``scaled_dot_product_attention``; the mask, where one is due, is made beforehand."""
    mask = None if lens is None and q.shape[2] == 1 else _visible(q, k, lens)
    return {"attn_mask": mask, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}


def _prepare_torch(q, k, v, lens, scale):
    arguments = _masked(q, k, v, lens, scale)
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **arguments)


def _of_backend(name):
    """A peer of one backend of torch's; one that does not take the case is unsupported with torch's reason."""

    def prepare(q, k, v, lens, scale):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.bias import causal_lower_right

        arguments = _masked(q, k, v, lens, scale)
        if name == "FLASH_ATTENTION" and lens is not None:
            raise NotImplementedError("torch's flash attention takes no mask, which lengths need; torch.varlen does")
        if name == "FLASH_ATTENTION" and q.shape[2] > 1:  # of as many keys as there are, the last are the tokens'
            arguments["attn_mask"] = causal_lower_right(q.shape[2], k.shape[2])

        def attend():
            with sdpa_kernel(getattr(SDPBackend, name)):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, **arguments)

        try:
            attend()
        except RuntimeError as error:
            raise NotImplementedError(f"torch's {name} does not take it: {error}") from error
        return attend

    return Peer(prepare)


def _prepare_varlen(q, k, v, lens, scale):
    """FlashAttention's kernel for sequences of any lengths, from a cache that lies as it wants it: token by token."""
    if q.device.type != "cuda":
        raise NotImplementedError("torch's flash attention of sequences runs on a GPU alone")
    batch, heads, queries, head_dim = q.shape
    seq = k.shape[2]
    each = torch.arange(batch + 1, dtype=torch.int32, device=q.device)
    starts = (each * queries, each * seq)
    rows = q.transpose(1, 2).reshape(-1, heads, head_dim)
    k, v = (x.transpose(1, 2).reshape(batch * seq, -1, head_dim) for x in (k, v))

    def attend():
        out = torch.ops.aten._flash_attention_forward(
            rows, k, v, *starts, queries, seq, 0.0, queries > 1, False, scale=scale, seqused_k=lens
        )[0]
        return out.view(batch, queries, heads, head_dim).transpose(1, 2)

    return attend


_FLEX = ((32, 16384), (16, 16384))
"""Caches and their rows on which flex_attention is compiled."""
_FLEX_SEARCHED = ((8, 4096), (16, 16384))
"""And where it is tuned."""


def _flex(problem: Case) -> str:
    if (problem["batch"], problem["seq"]) in _FLEX:
        return ""
    return "flex_attention is compiled for seconds on every case, and ends far behind without a mask: done on few cases"


def _prepare_flex(q, k, v, lens, scale):
    """``flex_attention``, compiled: it has kernels for few queries, which split the cache."""
    from torch.nn.attention.flex_attention import flex_attention

    arguments = _of_flex(q, k, v, lens, scale)
    torch._dynamo.reset()
    fast = torch.compile(flex_attention, dynamic=False)
    fast(**arguments)
    return lambda: fast(**arguments)


def _search_flex(q, k, v, lens, scale):
    """The same by the fastest of the kernels that torch.compile tries."""
    from torch.nn.attention.flex_attention import flex_attention

    return max_autotune(flex_attention, **_of_flex(q, k, v, lens, scale))


def _of_flex(q, k, v, lens, scale):
    """Keyword arguments of ``flex_attention``."""
    from torch.nn.attention.flex_attention import create_block_mask

    block_mask = None
    if lens is not None or q.shape[2] > 1:
        seq, queries = k.shape[2], q.shape[2]
        length = torch.full((q.shape[0],), seq, device=q.device) if lens is None else lens

        def sees(batch, head, query, key):
            return key < length[batch] - (queries - 1) + query

        block_mask = create_block_mask(sees, q.shape[0], None, queries, seq, device=q.device)
    shared = q.shape[1] != k.shape[1]
    return {"query": q, "key": k, "value": v, "block_mask": block_mask, "scale": scale, "enable_gqa": shared}


DECLARATION = Declaration(
    name="attention_decode",
    family="attention",
    summary="attention of new tokens to a long cache",
    call=lambda function, inputs: function(
        inputs["q"], inputs["k"], inputs["v"], inputs["lens"], inputs["scale"], return_lse=True
    ),
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    forward=Pass(
        inputs=_inputs,
        reference=reference,
        outputs=("out", "lse"),
        variants=(
            Variant(
                name="whole",
                summary="one program for each head of each cache, where these are short or keep SMs busy",
                launch=launch_chunks,
                space={name: values for name, values in SPLIT_SPACE.items() if name != "PROGRAMS"},
                default=whole_default,
                fits=fits,
                handles=reads_whole,
            ),
            Variant(
                name="split",
                summary="caches split in chunks, one a program, whose results a second kernel combines",
                launch=launch_chunks,
                space=SPLIT_SPACE,
                default=split_default,
                fits=fits,
                handles=splits,
                follows="whole",
            ),
            Variant(
                name="even",
                summary="all caches cut into as many equal parts as there are programs; a second kernel joins them",
                launch=launch_even,
                space=SPLIT_SPACE,
                default=split_default,
                fits=fits,
                follows="split",
            ),
        ),
        peers={
            "torch": Peer(_prepare_torch),
            "torch.flash": _of_backend("FLASH_ATTENTION"),
            "torch.cudnn": _of_backend("CUDNN_ATTENTION"),
            "torch.varlen": Peer(_prepare_varlen),
            "flex_attention": Peer(_prepare_flex, compiles=True, handles=_flex),
            "flex_attention max-autotune": searching(
                _search_flex, lambda c: c.dtype == "bf16" and (c["batch"], c["seq"]) in _FLEX_SEARCHED
            ),
        },
        bytes=_bytes,
        flops=_flops,
        reduction=lambda c: c["seq"],
    ),
)
