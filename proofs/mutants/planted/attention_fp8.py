"""Mutants of attention of fp8 heads."""

from __future__ import annotations

from ..checks import NON_CONTIGUOUS, VALUES
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "attention_fp8", "P's factor left in lse", "forgotten factor",
        "out is divided by the sum that has the factor too, and is right",
        (("(m_i + (tl.log2(l_i) - LIFT)) * LN2", "(m_i + tl.log2(l_i)) * LN2"),),
        VALUES, "forward", "tiled",
    ),
    Mutant(
        "attention_fp8", "key's scale by batch alone", "wrong index",
        "one head of keys served all wherever it was tried",
        (("tl.load(k_scale_ptr + place // group)", "tl.load(k_scale_ptr + batch)"),),
        VALUES, "forward", "tiled",
    ),
    Mutant(
        "attention_fp8", "value's scale forgotten", "forgotten factor",
        "softmax hides what its scores are multiplied by, so scales looked optional",
        (("acc * (v_scale / l_i)[:, None]", "acc / l_i[:, None]"),),
        VALUES, "forward", "tiled",
    ),
    Mutant(
        "attention_fp8", "sums of earlier blocks not scaled down", "online softmax",
        "with all keys in one block there are none",
        (("acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)", "acc = acc + tl.dot(p.to(v.dtype), v)"),),
        VALUES, "forward", "tiled",
    ),
    Mutant(
        "attention_fp8", "elements of a head taken for neighbours", "non-contiguous input misread",
        "every projection writes them side by side",
        (("(x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous() for x in (query, key, value))",
          "(query, key, value)"),),
        NON_CONTIGUOUS, "forward", "public",
    ),
)  # fmt: skip
