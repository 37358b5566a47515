"""Mutants of embedding."""

from __future__ import annotations

from ..checks import GRADIENTS, HUGE, VALUES, WRITTEN
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "embedding", "last column not owned", "off-by-one mask",
        "n - 1 is the last column, and < was meant as <=",
        (("(offs_m < m) | EVEN, (offs_n < n) | EVEN", "(offs_m < m) | EVEN, (offs_n < n - 1) | EVEN"),),
        WRITTEN, "forward", "tiles",
    ),
    Mutant(
        "embedding", "tokens after the last tile forgotten", "tail of a reduction",
        "runs are short or whole tiles where one tries it",
        (("singles = end - begin - tiles * SPLIT", "singles = head"),),
        VALUES, "backward", "runs",
    ),
    Mutant(
        "embedding", "tokens of tiles added twice", "term counted twice",
        "what the tiles hold was not skipped; a run without one shows nothing",
        (("at = begin + i + tl.where(i < head, 0, tiles * SPLIT)", "at = begin + i"),),
        VALUES, "backward", "runs",
    ),
    Mutant(
        "embedding", "binary search one step short", "config-dependent",
        "log2(m) steps find one of m places; there are m + 1",
        (("BITS=m.bit_length()", "BITS=(m - 1).bit_length()"),),
        VALUES, "backward", "runs",
    ),
    Mutant(
        "embedding", "equal rows share a rank", "unstable sort",
        "whether those of earlier chunks come first seemed not to matter",
        (("tl.where(chunk < own, (row + 1)[None, :], row[None, :])", "row[None, :] + tl.zeros_like(chunk)"),),
        VALUES, "backward", "runs",
    ),
    Mutant(
        "embedding", "padding has a gradient", "argument ignored",
        "forward padding_idx changes nothing",
        ((" & (index != padding_idx)", ""),),
        VALUES, "backward", "runs",
    ),
    Mutant(
        "embedding", "rows without tokens not written", "unwritten output",
        "there is nothing to add there, and fresh memory is often zero",
        (("mask=mask_v[:, None] & mask_n, cache_modifier", "mask=(end > begin)[:, None] & mask_n, cache_modifier"),),
        WRITTEN, "backward", "runs",
    ),
    Mutant(
        "embedding", "strided gradients taken as they are", "non-contiguous input misread",
        "a gradient that comes from a layer is contiguous",
        (("_backward(dy.contiguous(), index,", "_backward(dy, index,"),),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "embedding", "offsets of 32 bits", "int32 overflow of offsets",
        "program_id is 32-bit, and so is its product",
        (("(tl.program_id(0) // blocks).to(tl.int64) * BLOCK_M", "tl.program_id(0) // blocks * BLOCK_M"),),
        VALUES, "forward", "tiles", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
