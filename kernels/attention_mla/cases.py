"""What attention with values of another size is checked and measured on: formulas, inputs, cases, and their cost."""

import torch
from atlas.declaration import GPU, Case, case, element_size, torch_dtype

from kernels.attention import cases as plain

DTYPES = plain.DTYPES


def case_of(q, k, v, causal):
    """The case of a call: q [b, h, l, d], k [b, g, s, d], v [b, g, s, e]."""
    of_one_size = plain.case_of(q, k, causal)
    return case(of_one_size.dtype, **dict(of_one_size.sizes) | {"e": v.shape[3]})


def of_size(problem: Case, d: int) -> Case:
    """The case of attention whose heads are all of this size."""
    sizes = {name: problem[name] for name in ("b", "h", "g", "l", "s")}
    return case(problem.dtype, **sizes, d=d, causal=problem["causal"])


def of_one_size(problem: Case) -> Case:
    """That of the wider heads' size: what configs are chosen by."""
    return of_size(problem, max(problem["d"], problem["e"]))


def reference(q, k, v, causal, scale):
    """(out, lse) by the formula."""
    parts = []
    for q_i, k_i, v_i in plain.by_groups(q, k, v):
        s = plain.scores_of(q_i, k_i, causal, scale)
        parts.append((torch.softmax(s, dim=-1) @ v_i, torch.logsumexp(s.float() if s.itemsize < 4 else s, dim=-1)))
    out, lse = (torch.cat(column) for column in zip(*parts, strict=True))
    return out.view(*q.shape[:3], v.shape[3]), lse.view(q.shape[:3])


def forward_inputs(problem: Case, device, generator):
    dtype = torch_dtype(problem.dtype)

    def draw(heads, length, columns):
        shape = (problem["b"], problem[heads], problem[length], problem[columns])
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    q, k, v = draw("h", "l", "d"), draw("g", "s", "d"), draw("g", "s", "e")
    return {"q": q, "k": k, "v": v, "causal": problem["causal"], "scale": problem["d"] ** -0.5}


def backward_inputs(problem: Case, device, generator):
    return plain.for_backward(forward_inputs(problem, device, generator), generator)


def with_padded_values(attention):
    """The attention by heads of one size: what models do for kernels that take no others, at every call."""

    def padded(q, k, v, causal, scale, **saved):
        columns = v.shape[3]
        if columns > q.shape[3]:
            raise NotImplementedError("values are wider than queries: there is nothing to pad")
        v = torch.nn.functional.pad(v, (0, q.shape[3] - columns))
        return attention(q=q, k=k, v=v, causal=causal, scale=scale)[..., :columns]

    return padded


def products_of(**columns):
    """``flops`` of products of all pairs, by name, with as many elements each as "d" or "e" says."""

    def flops(problem: Case) -> dict[str, int]:
        pairs = 2 * problem["b"] * problem["h"] * plain.pairs_of(problem)
        return {name: pairs * problem[size] for name, size in columns.items()}

    return flops


def bytes_of(**tensors):
    """``bytes`` of tensors, by name, whose rows are those of "h" or "g" and have "d" or "e" columns: "he"."""

    def count(problem: Case) -> dict[str, int]:
        size, rows = element_size(problem.dtype), {"h": problem["l"], "g": problem["s"]}
        of_tensors = {
            name: problem["b"] * problem[heads] * rows[heads] * problem[columns] * size
            for name, (heads, columns) in tensors.items()
        }
        return of_tensors | {"lse": 4 * problem["b"] * problem["h"] * problem["l"]}

    return count


FORWARD_BYTES = {"q": "hd", "k": "gd", "v": "ge", "out": "he"}
BACKWARD_BYTES = FORWARD_BYTES | {"dout": "he", "dq": "hd", "dk": "gd", "dv": "ge"}


def sized(dtype, reason="", causal=False, **sizes):
    """A case; g is h and s is l unless given."""
    b, h, length, d, e = (sizes[name] for name in ("b", "h", "l", "d", "e"))
    g, s = sizes.get("g", h), sizes.get("s", length)
    return case(dtype, reason, b=b, h=h, g=g, l=length, s=s, d=d, causal=causal, e=e)


def sweep(gpu: GPU) -> list[Case]:
    cases = [
        sized("bf16", "16 384 tokens of a model of 16 heads", True, b=4, h=16, l=4096, d=192, e=128),
        sized("bf16", "a prompt of a model of 128 heads", True, b=1, h=128, l=4096, d=192, e=128),
        sized("bf16", "no mask", False, b=4, h=16, l=4096, d=192, e=128),
        sized("bf16", "short prompts", True, b=8, h=16, l=512, d=192, e=128),
        sized("bf16", "small heads of latent attention", True, b=2, h=40, l=4096, d=96, e=64),
        sized("bf16", "differential attention: values of two heads' width", True, b=4, h=32, l=2048, d=64, e=128),
        sized("fp16", "", True, b=4, h=16, l=2048, d=192, e=128),
    ]
    largest = gpu.memory_bytes // 64
    return [c for c in cases if sum(bytes_of(**FORWARD_BYTES)(c).values()) <= largest]


_EDGE_SHAPES = (
    ((3, 3, 3, 20, 24, 16, 24, False), "no mask but at the end: hard inputs reach all queries alike"),
    ((1, 2, 1, 70, 90, 48, 40, True), "values narrower, a diagonal, tails; two heads share one of keys"),
    ((1, 2, 2, 90, 70, 40, 64, True), "values wider, more queries than keys under a mask"),
    ((1, 1, 1, 40, 40, 192, 128, True), "heads of latent attention"),
    ((1, 2, 1, 300, 270, 192, 128, True), "the same in several blocks of keys; two heads share one"),
    ((1, 4, 2, 200, 150, 96, 64, False), "heads in two parts, values in one"),
    ((1, 2, 2, 200, 200, 64, 80, True), "heads in one part, values in two"),
    ((1, 2, 1, 140, 160, 136, 256, True), "the largest values, wider than heads"),
    ((1, 1, 1, 100, 129, 256, 64, False), "the largest heads, values in 64 columns"),
    ((1, 2, 1, 33, 65, 7, 13, False), "rows that no descriptor describes, of either"),
    ((1, 2, 2, 64, 64, 64, 128, False), "whole blocks"),
    ((1, 4, 1, 1, 100, 192, 128, False), "a single query; all heads share one of keys"),
    ((1, 4, 2, 200, 77, 96, 64, False), "few keys, all in one block; two heads share one of keys"),
    ((1, 2, 1, 100, 100, 64, 128, True), "the same, values wider; a tail"),
    ((1, 2, 2, 50, 90, 128, 32, True), "more keys than queries; values in less than half of the columns"),
)

EDGE_CASES = tuple(
    sized(dtype, reason, causal, b=b, h=h, g=g, l=length, s=s, d=d, e=e)
    for dtype in DTYPES
    for (b, h, g, length, s, d, e, causal), reason in _EDGE_SHAPES[: 5 if dtype == "bf16" else None]  # as fp16's
)

HUGE_CASES = (  # attention's own, whose reasons for these numbers of heads, queries and keys hold here
    sized("bf16", "offsets into queries beyond 2^31", b=2, h=2**12 + 4, g=1, l=2**11, s=64, d=128, e=64),
    sized("bf16", "offsets into keys beyond 2^31, within a head", b=1, h=1, l=192, s=2**23 + 3, d=256, e=128),
)
