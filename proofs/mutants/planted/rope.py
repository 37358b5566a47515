"""Mutants of rope."""

from __future__ import annotations

from ..checks import GRADIENTS, HUGE, NON_CONTIGUOUS, UNCHANGED, VALUES, WRITTEN
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "rope", "second half by the first's new value", "wrong formula",
        "written over x_1 and read again, as in-place code is written",
        (("turned_two = two * cos + one * sin", "turned_two = two * cos + turned_one * sin"),),
        VALUES, "forward", "lanes",
    ),
    Mutant(
        "rope", "gradient turned on", "wrong gradient",
        "backward is the same rotation, but for a sign",
        (("    if INVERSE:\n        sin = -sin\n", ""),),
        VALUES, "backward", "lanes",
    ),
    Mutant(
        "rope", "lanes past the last", "missing mask",
        "programs were full wherever it was tried",
        (("mask = (offs_b < batches)[:, None]", "mask = (offs_b <= batches)[:, None]"),),
        WRITTEN, "forward", "lanes",
    ),
    Mutant(
        "rope", "last lanes without a program", "unwritten tail",
        "whole programs of lanes wherever it was tried",
        (("triton.cdiv(batch * seq * heads * half // width, lanes)", "batch * seq * heads * half // width // lanes"),),
        WRITTEN, "forward", "lanes",
    ),
    Mutant(
        "rope", "keys by the heads of queries", "wrong operand",
        "right as long as both have as many heads",
        (("pid - blocks_q, batches, seq, heads_k,", "pid - blocks_q, batches, seq, heads_q,"),),
        WRITTEN, "forward", "lanes",
    ),
    Mutant(
        "rope", "pairs half a lane apart", "wrong pairing",
        "the second half was taken to start a whole number of 16-byte lanes after the first, as in heads of 128",
        (("two = tl.load(x_ptrs + HALF + offs_d, mask=mask)",
          "two = tl.load(x_ptrs + (HALF + 15) // 16 * 16 + offs_d, mask=mask)"),),
        VALUES, "forward", "lanes", sizes={
            "batch": 1, "seq": 7, "heads": 4, "kv_heads": 0, "head_dim": 24,
            "interleaved": False, "heads_first": False,
        },
    ),
    Mutant(
        "rope", "tables taken for aligned", "wrong hint to the compiler",
        "rows of the tables were whole lanes wherever it was tried: a table with gaps is not",
        (("ALIGNED=angles[0] % width == 0 and angles[1] % width == 0,", "ALIGNED=True,"),),
        NON_CONTIGUOUS, "forward", "public",
    ),
    Mutant(
        "rope", "rotated in place", "input overwritten",
        "an allocation less, as some libraries do; whoever holds q finds it turned",
        (("q_out, k_out = torch.empty_like(q), None if k is None else torch.empty_like(k)", "q_out, k_out = q, k"),),
        UNCHANGED, "forward", "lanes",
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
        (("return *rope_qk_operator(_readable(dq), _readable(dk), *rest), *(None,) * 5",
          "return *rope_qk_operator(_readable(dk), _readable(dq), *rest), *(None,) * 5"),),
        GRADIENTS, "backward", "public", sizes={
            "batch": 2, "seq": 16, "heads": 4, "kv_heads": 4, "head_dim": 32,
            "interleaved": False, "heads_first": False,
        },
    ),
    Mutant(
        "rope", "tokens counted in 32 bits", "int32 overflow of offsets",
        "a token's number is 32-bit, and so is its product with the stride",
        (("offs_b, offs_s, offs_h = offs_b.to(tl.int64), offs_s.to(tl.int64), offs_h.to(tl.int64)",
          "offs_b, offs_h = offs_b.to(tl.int64), offs_h.to(tl.int64)"),),
        VALUES, "forward", "lanes", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
