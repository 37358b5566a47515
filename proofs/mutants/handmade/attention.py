"""Faults in attention that no mutation operator makes."""

from __future__ import annotations

from ..planting import Edit, Mutant
from .checks import LARGE, NON_CONTIGUOUS, VALUES

# fmt: off
MUTANTS = (
    Mutant("attention", "no maximum subtracted", "overflow", (Edit("tl.maximum(m_i, tl.max(s, axis=1) * scale)",
        "tl.zeros_like(m_i)"),), LARGE, "forward", "tiled", "fp32"),
    Mutant("attention", "a mask from the bottom right corner", "wrong mask",
        (Edit("at_q, at_k, shift = batch, batch, 0", "at_q, at_k, shift = batch, batch, len_k - len_q",
            "_keys_kernel"),), VALUES, "backward",
        "tiled"),
    Mutant("attention", "keys behind the last not masked", "missing mask", (Edit("len_k",
        "len_k + 2 * BLOCK_N", "_sees"),), VALUES, "forward", "tiled"),
    Mutant("attention", "heads of keys counted round robin", "wrong index", (Edit("head // group",
        "head % (heads // group)", "_forward_kernel"),), VALUES, "forward", "tiled"),
    Mutant("attention", "dK of the first head of a group alone", "wrong gradient of one input",
        (Edit("tl.range(0, group, num_stages=1)", "tl.range(0, 1, num_stages=1)"),), VALUES, "backward", "tiled"),
    Mutant("attention", "elements of a head taken for neighbours", "non-contiguous input misread",
        (Edit("x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()", "x"),), NON_CONTIGUOUS, "forward",
        "public"),
    Mutant("attention_masked", "a mask of the first batch alone", "wrong index", (Edit(
        "batch * (stride_mb // STEP * STEP)", "0 * stride_mb"),), VALUES, "forward", "tiled"),
    Mutant("attention_masked", "a mask added after the scale of log2", "wrong formula",
        (Edit("mask.to(tl.float32) * LOG2E - lse", "mask.to(tl.float32) - lse"),), VALUES, "backward", "tiled"),
    Mutant("attention_masked", "a window from the block's first key", "wrong mask", (Edit("ahead >= -left",
        "ahead > -left"),), VALUES, "forward", "tiled"),
    Mutant("attention_masked", "a block too few at the window's beginning", "missing block",
        (Edit("tl.minimum(first + shift - left, len_k - 1)", "tl.minimum(first + shift - left + BLOCK_N, len_k - 1)"),),
        VALUES, "forward", "tiled"),
    Mutant("attention_masked", "queries that see a key late left out", "wrong gradient of one input",
        (Edit("last - shift + left + 1", "first - shift + left + 1"),), VALUES, "backward", "tiled"),
    Mutant("attention_masked", "a query that sees nothing has weights", "wrong edge case",
        (Edit("tl.where(l_i == 0.0, 1.0, l_i)", "l_i"),), VALUES, "forward", "tiled"),
    Mutant("attention_mla", "D of as many columns as a query has", "wrong size",
        (Edit("block_d(out.shape[-1])", "block_d(q.shape[-1])", "launch_statistics"),), VALUES, "backward", "tiled"),
    Mutant("attention_mla", "dV as wide as dK", "unwritten tail", (Edit(
        "write_rows(dv_ptr, dv, first, rows_k - first, stride_dvs, VALUE_DIM, BLOCK_N, BLOCK_E, ALIGNED)",
        "write_rows(dv_ptr, dv, first, rows_k - first, stride_dvs, HEAD_DIM, BLOCK_N, BLOCK_E, ALIGNED)"),), VALUES,
        "backward", "tiled"),
    Mutant("attention_decode", "chunks weighed by their own maximum", "wrong formula", (Edit("m_i - top",
        "m_i - m_i", "weighed"),), VALUES, "forward", "split",
        sizes={"batch": 3, "heads": 4, "kv_heads": 1, "seq": 300, "queries": 1, "head_dim": 64, "ragged": True}),
    Mutant("attention_decode", "chunks behind the end are combined", "uninitialised memory read",
        (Edit("tl.cdiv(length, chunk)", "splits"),), VALUES, "forward", "split",
        sizes={"batch": 3, "heads": 4, "kv_heads": 1, "seq": 300, "queries": 1, "head_dim": 64, "ragged": True}),
    Mutant("attention_decode", "a part of nobody is joined", "uninitialised memory read",
        (Edit("(begin + count - 1) // share", "(begin + count) // share"),), VALUES, "forward", "even",
        sizes={"batch": 3, "heads": 4, "kv_heads": 1, "seq": 300, "queries": 1, "head_dim": 64, "ragged": True}),
    Mutant("attention_fp8", "key's scale by batch alone", "wrong index", (Edit("k_scale_ptr + place // group",
        "k_scale_ptr + batch"),), VALUES, "forward", "tiled"),
    Mutant("attention_fp8", "elements of a head taken for neighbours", "non-contiguous input misread",
        (Edit("(x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous() for x in (query, key, value))",
        "(query, key, value)"),), NON_CONTIGUOUS, "forward", "public"),
)
