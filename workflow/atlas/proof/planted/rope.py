"""Mutants of rope."""

from __future__ import annotations

from ..checks import GRADIENTS, HUGE, NON_CONTIGUOUS, UNCHANGED, VALUES, WRITTEN
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "rope", "second half by the first's new value", "wrong formula",
        "written over x_1 and read again, as in-place code is written",
        (("turned_second = second * cos + first * sin", "turned_second = second * cos + turned_first * sin"),),
        VALUES, "forward", "blocks",
    ),
    Mutant(
        "rope", "gradient turned on", "wrong gradient",
        "backward is the same rotation, but for a sign",
        (("    if INVERSE:\n        sin = -sin\n", ""),),
        VALUES, "backward", "blocks",
    ),
    Mutant(
        "rope", "heads past the last", "missing mask",
        "tiles were full wherever it was tried: their number of heads a power of two",
        (("mask_m = ((offs_s < seq) & (offs_h < heads))[:, None]", "mask_m = (offs_s < seq)[:, None]"),),
        WRITTEN, "forward", "blocks",
    ),
    Mutant(
        "rope", "even although keys remain", "config-dependent",
        "whether tiles are full was asked of the queries alone",
        ((" and seq % block_sk == 0 and heads_k % block_hk == 0", ""),),
        WRITTEN, "forward", "blocks", sizes={
            "batch": 2, "seq": 16, "heads": 4, "kv_heads": 3, "head_dim": 32,
            "interleaved": False, "heads_first": False,
        },
    ),
    Mutant(
        "rope", "keys by the heads of queries", "wrong operand",
        "right as long as both have as many heads",
        (("pid - blocks_q, seq, heads_k,", "pid - blocks_q, seq, heads_q,"),),
        WRITTEN, "forward", "blocks",
    ),
    Mutant(
        "rope", "pairs padded in the wrong place", "wrong pairing",
        "the second half was taken to start where the padded first one ends",
        (("second = tl.load(x_ptrs + HALF + offs_n, mask=mask)",
          "second = tl.load(x_ptrs + BLOCK_D + offs_n, mask=mask)"),
         ("tl.store(out_ptrs + HALF + offs_n, turned_second, mask=mask)",
          "tl.store(out_ptrs + BLOCK_D + offs_n, turned_second, mask=mask)")),
        WRITTEN, "forward", "blocks", sizes={
            "batch": 1, "seq": 7, "heads": 4, "kv_heads": 0, "head_dim": 24,
            "interleaved": False, "heads_first": False,
        },
    ),
    Mutant(
        "rope", "rotated in place", "input overwritten",
        "an allocation less, as some libraries do; whoever holds q finds it turned",
        (("q_out, k_out = torch.empty_like(q), None if k is None else torch.empty_like(k)", "q_out, k_out = q, k"),),
        UNCHANGED, "forward", "blocks",
    ),
    Mutant(
        "rope", "strides of the last dimension ignored", "non-contiguous input misread",
        "heads were taken to be of consecutive elements",
        (("return x if x.stride(-1) == 1 else x.contiguous()", "return x"),),
        NON_CONTIGUOUS, "forward", "public",
    ),
    Mutant(
        "rope", "outgoing gradients exchanged", "wrong gradient of one input",
        "as many heads in both, and no shape complains",
        (("return *_rope_qk(_readable(dq), _readable(dk), *rest), *(None,) * 5",
          "return *_rope_qk(_readable(dk), _readable(dq), *rest), *(None,) * 5"),),
        GRADIENTS, "backward", "public", sizes={
            "batch": 2, "seq": 16, "heads": 4, "kv_heads": 4, "head_dim": 32,
            "interleaved": False, "heads_first": False,
        },
    ),
    Mutant(
        "rope", "tokens counted in 32 bits", "int32 overflow of offsets",
        "a token's number is 32-bit, and so is its product with the stride",
        (("return batch.to(tl.int64), (first_s + rows // BLOCK_H).to(tl.int64),",
          "return batch.to(tl.int64), first_s + rows // BLOCK_H,"),),
        VALUES, "forward", "blocks", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
