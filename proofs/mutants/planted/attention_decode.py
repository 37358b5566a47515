"""Mutants of attention_decode."""

from __future__ import annotations

from ..checks import HUGE, VALUES, WRITTEN
from ..planting import Mutant

_RAGGED = {"batch": 3, "heads": 4, "kv_heads": 1, "seq": 300, "queries": 1, "head_dim": 64, "ragged": True}
_TOKENS = {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 130, "queries": 4, "head_dim": 64, "ragged": True}

MUTANTS = (
    Mutant(
        "attention_decode", "chunks weighed by their own maximum", "wrong formula",
        "right as long as all chunks have the same maximum, or there is one chunk",
        (("share = tl.exp2(m_i - top)", "share = tl.exp2(m_i - m_i)"),),
        VALUES, "forward", "split", sizes=_RAGGED,
    ),
    Mutant(
        "attention_decode", "all tokens see the newest", "wrong mask",
        "one token sees all of the cache, and so it was tried",
        (("limit = length - (QUERIES - 1) + query", "limit = length + query * 0"),),
        VALUES, "forward", "split", sizes=_TOKENS,
    ),
    Mutant(
        "attention_decode", "lengths ignored in whole blocks", "wrong mask",
        "every cache was full where it was tried",
        (("        length = tl.minimum(tl.load(lens_ptr + batch), seq)\n", "        length = seq\n"),),
        VALUES, "forward", "split", sizes=_RAGGED,
    ),
    Mutant(
        "attention_decode", "chunks behind the end are combined", "uninitialised memory read",
        "programs behind a sequence's end write nothing, so what is there is what was allocated",
        (("    used = tl.cdiv(length, chunk)\n", "    used = splits\n"),),
        VALUES, "forward", "split", sizes=_RAGGED,
    ),
    Mutant(
        "attention_decode", "rows of the product that are padding", "missing mask",
        "sixteen heads were shared where it was tried, and no row was left over",
        (("mask_m = offs_m < GROUP * QUERIES", "mask_m = offs_m < BLOCK_M"),),
        WRITTEN, "forward", "whole",
    ),
    Mutant(
        "attention_decode", "weights to base e", "wrong formula",
        "scores come to base 2, for exp2",
        (("p = tl.exp2(s - m_new[:, None])", "p = tl.exp(s - m_new[:, None])"),),
        VALUES, "forward", "whole",
    ),
    Mutant(
        "attention_decode", "log-sum-exp to base 2", "wrong unit",
        "chunks are combined in base 2, and the result was returned as it is",
        (("(top + tl.log2(total)) * LN2)", "top + tl.log2(total))"),),
        VALUES, "forward", "split", sizes=_RAGGED,
    ),
    Mutant(
        "attention_decode", "rows of the cache counted in 32 bits", "int32 overflow of offsets",
        "a row's number is 32-bit, and so is its product with the stride; heads and sequences are not reached",
        (("batch_64, head_64 = batch.to(tl.int64), head.to(tl.int64)", "batch_64, head_64 = batch, head"),),
        VALUES, "forward", "split", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
