"""Mutants of attention."""

from __future__ import annotations

from ..checks import GRADIENTS, HUGE, LARGE, NON_CONTIGUOUS, VALUES, WRITTEN
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "attention", "sum of weights not scaled down", "online softmax",
        "the accumulator was scaled by alpha, and the sum beside it forgotten",
        (("l_i = l_i * alpha + tl.sum(p, axis=1)", "l_i = l_i + tl.sum(p, axis=1)"),),
        VALUES, "forward", "tiled",
    ),
    Mutant(
        "attention", "no maximum subtracted", "overflow",
        "scores of random inputs are small",
        (("m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale)", "m_new = tl.zeros_like(m_i)"),),
        LARGE, "forward", "tiled", "fp32",
    ),
    Mutant(
        "attention", "the diagonal itself masked", "wrong mask",
        "a query sees the keys before it: and its own",
        (("offs_n <= first + shift + tl.arange", "offs_n < first + shift + tl.arange"),),
        VALUES, "forward", "tiled",
    ),
    Mutant(
        "attention", "a mask from the bottom right corner", "wrong mask",
        "as flash attention aligns it, and right wherever the lengths are equal",
        (("shift = 0 if cu_q_ptr is None else rows_k - rows_q\n    first = block * BLOCK_N",
          "shift = rows_k - rows_q\n    first = block * BLOCK_N"),),
        VALUES, "backward", "tiled",
    ),
    Mutant(
        "attention", "keys behind the last not masked", "missing mask",
        "they are read as 0, but exp(0) is 1",
        (("    seen = offs_n < len_k\n", "    seen = offs_n < len_k + 2 * BLOCK_N\n"),),
        VALUES, "forward", "tiled",
    ),
    Mutant(
        "attention", "heads of keys counted round robin", "wrong index",
        "groups are of neighbouring heads; the other order works where there is one group, or one head in each",
        (("first, head_k = block * BLOCK_M, head // group\n    if first >= rows_q:\n        return\n"
          "    b = batch.to(tl.int64)\n    q = head_of(q, b, head, first_q, stride_qb, stride_qh, stride_qs, "
          "DESCRIPTORS)\n    k = ",
          "first, head_k = block * BLOCK_M, head % (heads // group)\n    if first >= rows_q:\n        return\n"
          "    b = batch.to(tl.int64)\n    q = head_of(q, b, head, first_q, stride_qb, stride_qh, stride_qs, "
          "DESCRIPTORS)\n    k = "),),
        VALUES, "forward", "tiled",
    ),
    Mutant(
        "attention", "rows of the output not masked", "out-of-bounds store",
        "lengths were multiples of the block wherever it was tried",
        (("    mask = (tl.arange(0, BLOCK)[:, None] < rows) & (tl.arange(0, BLOCK_D)[None, :] < HEAD_DIM)\n    x_ptrs",
          "    mask = (tl.arange(0, BLOCK)[:, None] >= 0) & (tl.arange(0, BLOCK_D)[None, :] < HEAD_DIM)\n    x_ptrs"),),
        WRITTEN, "forward", "tiled",
    ),
    Mutant(
        "attention", "dS without D", "wrong gradient of one input",
        "softmax's own Jacobian was left out: dV does not hang on it",
        (("        ds = (p * (dp - delta[None, :])).to(q_m.dtype)\n", "        ds = (p * dp).to(q_m.dtype)\n"),),
        VALUES, "backward", "tiled",
    ),
    Mutant(
        "attention", "dK of the first head of a group alone", "wrong gradient of one input",
        "written without groups, and right where each head has keys of its own",
        (("for member in tl.range(0, group, num_stages=1):", "for member in tl.range(0, 1, num_stages=1):"),),
        VALUES, "backward", "tiled",
    ),
    Mutant(
        "attention", "dQ without the scale", "wrong gradient of one input",
        "log2(e) stands in the scale of the exponent and must not in that of the gradient: both went",
        (("write_rows(dq_ptr, dq * scale_out,", "write_rows(dq_ptr, dq,"),),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "attention", "elements of a head taken for neighbours", "non-contiguous input misread",
        "heads and tokens may lie anywhere, and a transposed matrix is rare",
        (("    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()\n", "    return x\n"),),
        NON_CONTIGUOUS, "forward", "public",
    ),
    Mutant(
        "attention", "offsets of heads of 32 bits", "int32 overflow of offsets",
        "a head's number is 32-bit, and so is its product with the stride",
        (("x += batch * stride_xb + tl.cast(head, tl.int64) * stride_xh",
          "x += batch * stride_xb + head * stride_xh"),),
        VALUES, "forward", "tiled", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
