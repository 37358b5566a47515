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
        "embedding", "end of a long run forgotten", "tail of a reduction",
        "runs are short or end with a tile where one tries it",
        (("total += tl.load(partial + 2 * (tile + through + 1) * n, mask=mask_n, other=0.0)", "pass"),),
        VALUES, "backward", "runs",
    ),
    Mutant(
        "embedding", "first tile of a long run added twice", "term counted twice",
        "the tiles after the first were counted from the first; a run of two shows nothing",
        (("(2 * (tile + start + i) + 3) * n", "(2 * (tile + start + i) + 1) * n"),),
        VALUES, "backward", "runs",
    ),
    Mutant(
        "embedding", "position in the chunk taken for the token", "wrong index",
        "of one chunk they are the same",
        (("(own * CHUNK + packed % CHUNK)", "(packed % CHUNK)"),),
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
        (("mask=(named == 0)[:, None] & (offs_n", "mask=(named < 0)[:, None] & (offs_n"),),
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
        (("offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M", "offs_m = tl.program_id(0) * BLOCK_M"),),
        VALUES, "forward", "tiles", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
