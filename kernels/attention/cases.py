"""What attention is checked and measured on: its formulas by torch, its inputs, its cases and what they cost."""

import math

import torch
from atlas.declaration import GPU, Case, case, element_size, torch_dtype

DTYPES = ("fp32", "fp16", "bf16")
_NAMES = {torch_dtype(name): name for name in (*DTYPES, "fp8e4m3")}
LARGEST_HEAD = 256


def case_of(q, k, causal):
    """The case of a call, of attention_fp8, too: q [b, h, l, d], k [b, g, s, d]."""
    b, h, length, d = q.shape
    sizes = {"b": b, "h": h, "g": k.shape[1], "l": length, "s": k.shape[2], "d": d}
    return case(_NAMES[q.dtype], **sizes, causal=causal)


def by_groups(*tensors):
    """Tuples of [1, heads of a group, rows, columns], a group after the other: its scores alone may take gigabytes."""
    b, g = tensors[1].shape[:2]
    return zip(*(x.reshape(b * g, x.shape[1] // g, *x.shape[2:]).split(1) for x in tensors), strict=True)


def scores_of(q, k, causal, scale):
    s = scale * (q @ k.transpose(-1, -2))
    seen = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril() if causal else None
    return s if seen is None else s.masked_fill(~seen, -math.inf)


def reference(q, k, v, causal, scale):
    """(out, lse) by the formula."""
    parts = []
    for q_i, k_i, v_i in by_groups(q, k, v):
        s = scores_of(q_i, k_i, causal, scale)
        parts.append((torch.softmax(s, dim=-1) @ v_i, torch.logsumexp(s.float() if s.itemsize < 4 else s, dim=-1)))
    out, lse = (torch.cat(column) for column in zip(*parts, strict=True))
    return out.view(q.shape), lse.view(q.shape[:3])


def backward_reference(q, k, v, out, lse, dout, dlse, causal, scale):
    """(dq, dk, dv) by the formulas, from P itself: out and lse follow from q, k and v."""
    parts = []
    for q_i, k_i, v_i, dout_i in by_groups(q, k, v, dout):
        p = torch.softmax(scores_of(q_i, k_i, causal, scale), dim=-1)
        ds = p * (dout_i @ v_i.transpose(-1, -2) - (dout_i * (p @ v_i)).sum(-1, keepdim=True))
        dk, dv = ((x.transpose(-1, -2) @ y).sum(dim=1) for x, y in ((ds, q_i), (p, dout_i)))
        parts.append((scale * (ds @ k_i), scale * dk, dv))
    dq, dk, dv = (torch.cat(column) for column in zip(*parts, strict=True))
    return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape)


def spread_of_gradients(p, q, k, v, dout, scale):
    """Spreads of dq, dk and dv, by a group's weights p: roots of the sums of their terms' squares.

    A term of dV is p dO.  One of dQ or dK is dS k or dS q, and dS is as large as p times the parts of dP - D, which
    are rounded before one is taken from the other.  The first keys of a causal mask have terms many times larger than
    the rest, for a query that sees few keys gives each of them a large share.
    """
    d_squared = (dout * (p @ v)).square().sum(-1, keepdim=True)
    ds_squared = p.square() * ((dout @ v.transpose(-1, -2)).square() + d_squared)
    dk, dv = ((x.transpose(-1, -2) @ y.square()).sum(dim=1).sqrt() for x, y in ((ds_squared, q), (p.square(), dout)))
    return scale * (ds_squared @ k.square()).sqrt(), scale * dk, dv


def backward_spread(q, k, v, out, lse, dout, dlse, causal, scale):
    """(dq's, dk's, dv's): see :func:`spread_of_gradients`."""
    parts = [
        spread_of_gradients(torch.softmax(scores_of(q_i, k_i, causal, scale), dim=-1), q_i, k_i, v_i, dout_i, scale)
        for q_i, k_i, v_i, dout_i in by_groups(q, k, v, dout)
    ]
    dq, dk, dv = (torch.cat(column) for column in zip(*parts, strict=True))
    return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape)


def by_torch(q, k, v, causal, scale, **saved):
    """Attention of huge cases batch by batch: torch 2.11's gradient of q is wrong from element 2^31 on."""
    if q.numel() >= 2**31 and q.shape[0] > 1:
        return torch.cat(
            [by_torch(*part, causal, scale) for part in zip(*(x.split(1) for x in (q, k, v)), strict=True)]
        )
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def by_backend(backend):
    """``by_torch`` by one of its backends alone; NotImplementedError where that does not take the inputs."""

    def attention(**inputs):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        try:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return by_torch(**inputs)
        except RuntimeError as error:
            if "No available kernel" in str(error) or "No viable backend" in str(error):
                raise NotImplementedError(f"torch's {backend} does not take these inputs") from error
            raise

    return attention


def searched(problem: Case) -> bool:
    """Cases on which flex_attention tunes its kernels, which takes seconds each."""
    return problem["l"] == problem["s"] == 4096 and problem["h"] == 16 and problem.dtype != "fp16"


def forward_inputs(problem: Case, device, generator):
    dtype = torch_dtype(problem.dtype)

    def draw(heads, length):
        shape = (problem["b"], heads, length, problem["d"])
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    q, (k, v) = draw(problem["h"], problem["l"]), (draw(problem["g"], problem["s"]) for _ in "kv")
    return {"q": q, "k": k, "v": v, "causal": problem["causal"], "scale": problem["d"] ** -0.5}


def backward_inputs(problem: Case, device, generator):
    return for_backward(forward_inputs(problem, device, generator), generator)


def for_backward(inputs, generator):
    """Inputs of the backward pass from those of the forward pass: what that saves, and a gradient of out."""
    with torch.no_grad():
        out = by_torch(**inputs)
        parts = [_lse(q, k, inputs["causal"], inputs["scale"]) for q, k in by_groups(inputs["q"], inputs["k"])]
    dout = torch.randn(out.shape, dtype=out.dtype, device=out.device, generator=generator)
    lse = torch.cat(parts).view(out.shape[:3])
    parameters = {name: inputs.pop(name) for name in ("causal", "scale")}
    return inputs | {"out": out.contiguous(), "lse": lse, "dout": dout, "dlse": None} | parameters


def _lse(q, k, causal, scale):
    """As exact as fp32 holds it: an error of lse is one of all P of its query.

    By 512 heads, since torch's product of all in float64 has an operand of more than 2^31 elements in a huge case.
    """
    parts = (scores_of(part.double(), k.double(), causal, scale) for part in q.split(512, dim=1))
    return torch.cat([torch.logsumexp(s, dim=-1).float() for s in parts], dim=1)


def pairs_of(problem: Case) -> int:
    """Pairs of a query and a key that it sees, in one head."""
    length, s = problem["l"], problem["s"]
    if not problem["causal"]:
        return length * s
    diagonal = min(length, s)
    return diagonal * (diagonal + 1) // 2 + (length - diagonal) * s


def products_of(*names):
    """``flops`` of so many products of all pairs with d elements each."""

    def flops(problem: Case) -> dict[str, int]:
        return dict.fromkeys(names, 2 * problem["b"] * problem["h"] * pairs_of(problem) * problem["d"])

    return flops


def bytes_of(queries, keys):
    """``bytes`` of the tensors of the size of q and of k that are named, and of lse."""

    def count(problem: Case) -> dict[str, int]:
        b, h, g, length, s, d = (problem[name] for name in ("b", "h", "g", "l", "s", "d"))
        size = element_size(problem.dtype)
        of_queries = dict.fromkeys(queries.split(), b * h * length * d * size)
        return of_queries | dict.fromkeys(keys.split(), b * g * s * d * size) | {"lse": 4 * b * h * length}

    return count


def sized(dtype, reason="", causal=False, **sizes):
    """A case; g is h and s is l unless given."""
    b, h, length, d = (sizes[name] for name in ("b", "h", "l", "d"))
    g, s = sizes.get("g", h), sizes.get("s", length)
    return case(dtype, reason, b=b, h=h, g=g, l=length, s=s, d=d, causal=causal)


def sweep(gpu: GPU) -> list[Case]:
    cases = [
        sized("bf16", "16 384 tokens of a model 2048 wide", causal, b=16384 // length, h=2048 // d, l=length, d=d)
        for d, length in ((128, 1024), (128, 4096), (128, 16384), (64, 4096), (64, 16384))
        for causal in (False, True)
    ]
    cases += [
        sized("bf16", "the largest heads", True, b=4, h=8, l=4096, d=256),
        sized("bf16", "32 heads share 8 of keys", True, b=4, h=32, g=8, l=4096, d=128),
        sized("bf16", "the largest heads, two for each of keys", True, b=4, h=16, g=8, l=4096, d=256),
        sized("bf16", "few heads of keys: few blocks", True, b=2, h=28, g=4, l=2048, d=128),
        sized("bf16", "heads between powers of two", True, b=4, h=24, l=4096, d=96),
        sized("bf16", "a length of no whole blocks", True, b=4, h=16, l=4000, d=128),
        sized("fp16", "", True, b=4, h=16, l=4096, d=128),
        sized("fp16", "small: less than a wave of programs", True, b=2, h=8, l=512, d=64),
    ]
    largest = gpu.memory_bytes // 64
    return [c for c in cases if sum(bytes_of("q out", "k v")(c).values()) <= largest]


_EDGE_SHAPES = (
    ((3, 3, 3, 20, 24, 16, False), "no mask but at the end: hard inputs reach all queries alike"),
    ((3, 3, 3, 20, 136, 40, False), "the same for kernels of heads from 32 on, which met an infinity behind a mask"),
    ((1, 1, 1, 1, 2, 16, False), "one query; of a single key its gradient would be rounding errors around 0"),
    ((1, 2, 2, 70, 70, 64, True), "a diagonal, and tails on both sides"),
    (
        (1, 2, 1, 50, 90, 40, True),
        "more keys than queries; rows of no power of two, masked; two heads share one of keys",
    ),
    ((1, 4, 1, 1, 100, 64, False), "a single query; all heads share one of keys"),
    ((1, 2, 1, 300, 270, 128, True), "several blocks of keys, whose shares of a query's gradient are added in order"),
    ((1, 4, 2, 64, 64, 64, False), "whole blocks; of four heads two share each of two of keys"),
    ((1, 1, 1, 90, 50, 80, True), "more queries than keys under a mask"),
    ((1, 1, 1, 100, 33, 128, False), "several blocks of queries for a few keys"),
    ((1, 1, 1, 40, 40, 256, True), "the largest head"),
    ((1, 2, 1, 33, 65, 7, False), "heads of 14 or 28 bytes, which no descriptor describes"),
    ((1, 2, 1, 200, 150, 136, True), "a head little wider than half of what it is computed in; blocks with no masks"),
    ((1, 2, 2, 200, 200, 64, True), "small heads whose keys are more than one block"),
    ((1, 2, 1, 140, 160, 80, False), "the same of heads in two parts, which share keys"),
    ((2, 2, 2, 128, 128, 64, True), "all keys of a head are one whole block"),
    ((1, 4, 2, 300, 300, 96, True), "columns of a head's second part, in several blocks of keys, of two heads each"),
    ((1, 2, 2, 200, 200, 72, True), "a second part that has more columns than the head"),
    ((1, 2, 1, 140, 200, 112, False), "columns in one part, of which the head has not all"),
)

_MANY_HEADS = (
    ((1, 144, 2, 70, 70, 24, True), "several blocks of queries a program, of few keys in two halves"),
    ((1, 272, 136, 66, 66, 72, True), "several heads of keys a program, of few keys in one block"),
)
"""What kernels do on many multiprocessors alone; of one dtype, for the interpreter takes seconds."""

EDGE_CASES = tuple(
    sized(dtype, reason, causal, b=b, h=h, g=g, l=length, s=s, d=d)
    for dtype, shapes in (
        ("fp32", _EDGE_SHAPES),
        ("fp16", (*_EDGE_SHAPES, *_MANY_HEADS)),
        ("bf16", _EDGE_SHAPES[:7]),  # the same code as fp16
    )
    for (b, h, g, length, s, d, causal), reason in shapes
)

HUGE_CASES = (
    # Torch computes none but the first h mod 2^16 of more than 2^16 heads, and a batch has less than 2^31 elements, so
    # that torch can be asked for each by itself.
    sized("bf16", "offsets into queries beyond 2^31", b=2, h=2**12 + 4, g=1, l=2**11, s=64, d=128),
    # With more keys tensor cores, which truncate sums, lose much of an output near 0; with fewer queries the gradient
    # of a key hangs on one of them, and that one's rounding is large beside all others' gradients.
    sized("bf16", "offsets into keys beyond 2^31, within a head", b=1, h=1, l=192, s=2**23 + 3, d=256),
)
