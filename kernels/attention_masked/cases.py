"""What attention under masks and windows is checked and measured on: formulas by torch, inputs, cases, and their cost.

A case names a mask by its kind: "bool" is [1, 1, l, s], "added" [b, h, l, s], and either of "keys" [b, 1, 1, s].  Its
window is ``left`` and ``right`` keys, the query's own among them; 0 is all.
"""

import math

import torch
from atlas.declaration import GPU, Case, case, element_size, torch_dtype

from kernels.attention import cases as plain

from .blocks import kind_of

DTYPES = plain.DTYPES
UNSEEING = 40
"""The query that sees nothing, where a mask has so many."""


def case_of(q, k, mask, left, right):
    """The case of a call: q [b, h, l, d], k [b, g, s, d], a mask of four dimensions or None."""
    b, h, length, d = q.shape
    sizes = {"b": b, "h": h, "g": k.shape[1], "l": length, "s": k.shape[2], "d": d}
    named = plain.case_of(q, k, False)
    return case(named.dtype, **sizes, mask=kind_of(mask), left=left, right=right)


def seen_through(length, s, left, right, device):
    """Which of ``s`` keys each query sees through a window, [length, s]; None for all."""
    if not (left or right):
        return None
    ahead = torch.arange(s, device=device)[None, :] - torch.arange(length, device=device)[:, None]
    seen = torch.ones_like(ahead, dtype=torch.bool)
    if left:
        seen &= ahead > -left
    if right:
        seen &= ahead < right
    return seen


def _parts(mask, *tensors):
    """:func:`kernels.attention.cases.by_groups`, each with its mask [1, heads of a group, rows, columns]."""
    (b, h, length), (g, s) = tensors[0].shape[:3], tensors[1].shape[1:3]
    masks = [None] * (b * g)
    if mask is not None:
        masks = [m[None] for one in mask.expand(b, h, length, s) for m in one.split(h // g)]
    return zip(plain.by_groups(*tensors), masks, strict=True)


def _weights_of(q, k, mask, scale, left, right):
    """(P, lse), with rows of 0 and -inf where a query sees nothing."""
    s = scale * (q @ k.transpose(-1, -2))
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else s + mask
    seen = seen_through(*s.shape[-2:], left, right, s.device)
    if seen is not None:
        s = s.masked_fill(~seen, -math.inf)
    blind = (s == -math.inf).all(-1, keepdim=True)
    p = torch.softmax(s.masked_fill(blind, 0.0), dim=-1).masked_fill(blind, 0.0)
    return p, torch.logsumexp(s.float() if s.itemsize < 4 else s, dim=-1)


def reference(q, k, v, mask, scale, left, right):
    """(out, lse) by the formula."""
    parts = []
    for (q_i, k_i, v_i), mask_i in _parts(mask, q, k, v):
        p, lse = _weights_of(q_i, k_i, mask_i, scale, left, right)
        parts.append((p @ v_i, lse))
    out, lse = (torch.cat(column) for column in zip(*parts, strict=True))
    return out.view(q.shape), lse.view(q.shape[:3])


def backward_reference(q, k, v, mask, out, lse, dout, dlse, scale, left, right):
    """(dq, dk, dv) by the formulas, from P itself: out and lse follow from q, k, v and the mask."""
    parts = []
    for (q_i, k_i, v_i, dout_i), mask_i in _parts(mask, q, k, v, dout):
        p, _ = _weights_of(q_i, k_i, mask_i, scale, left, right)
        ds = p * (dout_i @ v_i.transpose(-1, -2) - (dout_i * (p @ v_i)).sum(-1, keepdim=True))
        dk, dv = ((x.transpose(-1, -2) @ y).sum(dim=1) for x, y in ((ds, q_i), (p, dout_i)))
        parts.append((scale * (ds @ k_i), scale * dk, dv))
    dq, dk, dv = (torch.cat(column) for column in zip(*parts, strict=True))
    return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape)


def backward_spread(q, k, v, mask, out, lse, dout, dlse, scale, left, right):
    """(dq's, dk's, dv's): see :func:`kernels.attention.cases.spread_of_gradients`."""
    parts = []
    for (q_i, k_i, v_i, dout_i), mask_i in _parts(mask, q, k, v, dout):
        p, _ = _weights_of(q_i, k_i, mask_i, scale, left, right)
        parts.append(plain.spread_of_gradients(p, q_i, k_i, v_i, dout_i, scale))
    dq, dk, dv = (torch.cat(column) for column in zip(*parts, strict=True))
    return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape)


def forward_inputs(problem: Case, device, generator):
    plainly = case(problem.dtype, **{name: problem[name] for name in "bhglsd"}, causal=False)
    drawn = plain.forward_inputs(plainly, device, generator)
    mask = _mask(problem, device, generator)
    window = {"left": problem["left"], "right": problem["right"]}
    return {name: drawn[name] for name in "qkv"} | {"mask": mask, "scale": drawn["scale"]} | window


def _mask(problem: Case, device, generator):
    kind, b, h, length, s = (problem[name] for name in ("mask", "b", "h", "l", "s"))
    shape = {"added": (b, h, length, s), "bool": (1, 1, length, s)}.get(kind, (b, 1, 1, s))
    if kind == "none":
        return None
    if kind == "bool keys":  # as of a batch of sentences: the first is as long as all, others end before
        ends = torch.linspace(s, max(1, s // 2), b, device=device).int()
        return (torch.arange(s, device=device)[None, :] < ends[:, None]).view(shape)
    mask = torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)
    mask = mask > -1.0 if kind == "bool" else mask
    if shape[2] > UNSEEING:
        mask[:, :, UNSEEING] = False if kind == "bool" else -math.inf
    return mask


def backward_inputs(problem: Case, device, generator):
    inputs = forward_inputs(problem, device, generator)
    wide = {name: inputs[name] for name in ("mask", "scale", "left", "right")}
    parts = []
    with torch.no_grad():
        for (q, k, v), mask in _parts(inputs["mask"], *(inputs[name] for name in "qkv")):
            for rows in torch.arange(q.shape[1], device="cpu").split(8):  # by heads: float64 of all takes gigabytes
                some = None if mask is None else mask[:, rows[0] : rows[-1] + 1]
                one = q[:, rows[0] : rows[-1] + 1].double()
                p, lse = _weights_of(one, k.double(), some, wide["scale"], wide["left"], wide["right"])
                parts.append(((p @ v.double()).to(q.dtype), lse.float()))
    out, lse = (torch.cat([x.flatten(0, 1) for x in column]) for column in zip(*parts, strict=True))
    out = out.view(inputs["q"].shape)
    dout = torch.randn(out.shape, dtype=out.dtype, device=device, generator=generator)
    parameters = {name: inputs.pop(name) for name in ("scale", "left", "right")}
    return inputs | {"out": out, "lse": lse.view(out.shape[:3]), "dout": dout, "dlse": None} | parameters


def _pairs(problem: Case) -> int:
    """Pairs of a query and a key in its window, in one head: what a mask says of them does not spare their scores."""
    length, s, left, right = (problem[name] for name in ("l", "s", "left", "right"))
    if not (left or right):
        return length * s
    return sum(max(0, min(s, i + right if right else s) - max(0, i - left + 1 if left else 0)) for i in range(length))


def products_of(*names):
    """``flops`` of so many products of all pairs with d elements each."""

    def flops(problem: Case) -> dict[str, int]:
        return dict.fromkeys(names, 2 * problem["b"] * problem["h"] * _pairs(problem) * problem["d"])

    return flops


def bytes_of(queries, keys):
    """``bytes`` of the tensors of the size of q and of k that are named, of lse and of the mask."""
    of_tensors = plain.bytes_of(queries, keys)

    def count(problem: Case) -> dict[str, int]:
        b, h, length, s = (problem[name] for name in ("b", "h", "l", "s"))
        kind, size = problem["mask"], element_size(problem.dtype)
        elements = {"none": 0, "added": b * h * length * s, "bool": length * s}.get(kind, b * s)
        return of_tensors(problem) | {"mask": elements * (size if kind.startswith("added") else 1)}

    return count


def sized(dtype, reason="", mask="none", left=0, right=0, **sizes):
    """A case; g is h and s is l unless given."""
    b, h, length, d = (sizes[name] for name in ("b", "h", "l", "d"))
    g, s = sizes.get("g", h), sizes.get("s", length)
    return case(dtype, reason, b=b, h=h, g=g, l=length, s=s, d=d, mask=mask, left=left, right=right)


def sweep(gpu: GPU) -> list[Case]:
    cases = [
        sized("bf16", "a batch of sentences, padded", "bool keys", b=8, h=16, l=2048, d=64),
        sized("bf16", "one mask for all heads", "bool", b=4, h=16, l=4096, d=128),
        sized("bf16", "a bias for each head", "added", b=4, h=16, l=2048, d=64),
        sized("bf16", "the last 1024 keys", "none", 1024, 1, b=1, h=16, l=16384, d=128),
        sized("fp16", "64 keys either side", "none", 65, 65, b=2, h=12, l=8192, d=64),
        sized("bf16", "a bias whose rows begin on 16 bytes, no more; groups", "added", b=2, h=32, g=8, l=1000, d=64),
        sized("bf16", "few blocks of the largest head", "bool", b=1, h=16, l=512, d=256),
        sized("bf16", "a window in a short sequence; groups", "none", 33, 33, b=4, h=32, g=8, l=128, d=64),
        sized("bf16", "a picture that looks at padded text", "bool keys", b=2, h=10, l=4096, s=77, d=64),
        sized("bf16", "pictures, padded; heads in two parts", "bool keys", b=8, h=16, l=1024, d=80),
        sized("fp16", "a bias of 64 keys; groups", "added", b=8, h=32, g=8, l=64, d=96),
    ]
    return [c for c in cases if sum(bytes_of("q out", "k v")(c).values()) <= gpu.memory_bytes // 64]


_EDGE_SHAPES = (
    ((3, 3, 3, 20, 24, 16), ("added", 24, 24), "a window of all keys, no size 0: hard inputs reach all queries alike"),
    ((1, 2, 2, 20, 24, 16), ("added", 0, 0), "a number for each score, and no window"),
    ((1, 2, 2, 70, 75, 64), ("bool", 0, 0), "several blocks, tails on both sides, a query that sees no key"),
    ((2, 4, 2, 50, 90, 40), ("bool keys", 0, 0), "keys that no query of a batch sees; groups; no power of two"),
    ((1, 2, 1, 64, 64, 64), ("added keys", 0, 0), "whole blocks; numbers that are the same for all queries"),
    ((1, 2, 1, 150, 150, 16), ("none", 20, 1), "a window smaller than a block, into the past alone"),
    ((1, 1, 1, 140, 200, 32), ("none", 70, 90), "a window larger than a block, to both sides; more keys than queries"),
    ((1, 2, 2, 200, 70, 16), ("none", 30, 0), "no end on the right; queries behind all keys, which see none"),
    ((1, 2, 1, 90, 130, 32), ("added", 0, 40), "a bias and no end on the left; a query that sees no key"),
    ((1, 1, 1, 33, 65, 7), ("bool", 9, 9), "a mask in a window; heads of 14 or 28 bytes: no descriptor"),
    ((1, 1, 1, 24, 40, 256), ("bool", 0, 0), "the largest head"),
    ((1, 2, 1, 70, 75, 32), ("added", 0, 0), "rows of 150 bytes, which are copied first"),
    ((1, 6, 2, 100, 60, 48), ("added", 30, 30), "one block of keys; queries that see it dealt out among programs"),
    ((1, 4, 2, 300, 77, 64), ("bool keys", 0, 0), "many queries of one block of keys; groups"),
    ((1, 6, 1, 70, 140, 32), ("bool keys", 0, 0), "heads of a group dealt out among programs"),
    ((2, 2, 1, 40, 70, 72), ("bool keys", 0, 0), "heads in two parts, of which the second has 8 columns of 16"),
    ((1, 2, 2, 70, 75, 80), ("added", 20, 9), "heads of 64 columns and 16; a bias in a window"),
    ((1, 2, 2, 64, 64, 96), ("bool", 0, 0), "heads of 64 columns and 32; whole blocks"),
    ((1, 1, 1, 20, 40, 65), ("none", 0, 9), "heads of 64 columns and one, off 16 bytes"),
)

EDGE_CASES = tuple(
    sized(dtype, reason, *masked, b=b, h=h, g=g, l=length, s=s, d=d)
    for dtype in DTYPES
    for (b, h, g, length, s, d), masked, reason in _EDGE_SHAPES[: 7 if dtype == "bf16" else None]  # same code as fp16
)

HUGE_CASES = (
    # Few keys: of a mean over many tensor cores, which truncate sums, lose much.
    sized("bf16", "offsets into the mask beyond 2^31", "added", b=1, h=9, l=2**19, s=2**9, d=64),
)
