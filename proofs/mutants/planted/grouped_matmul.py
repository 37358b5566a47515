"""Mutants of grouped_matmul."""

from __future__ import annotations

from ..checks import GRADIENTS, HUGE, VALUES, WRITTEN
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "grouped_matmul", "first tile of a group counted to the one before", "off by one",
        "< and <= are one key apart, and with a single group they are the same but at the end",
        (("before = ends_of_tiles <= position", "before = ends_of_tiles < position"),),
        VALUES, "forward", "tiled",
    ),
    Mutant(
        "grouped_matmul", "rows of no group left as they are", "unwritten tail",
        "torch leaves them, too",
        (("ends = tl.where(group < groups, ends, M)", "ends = tl.where(group < groups, ends, 0)"),),
        WRITTEN, "forward", "tiled",
    ),
    Mutant(
        "grouped_matmul", "last block of a sum not masked", "missing mask",
        "what follows are valid rows, and in a single group there are none",
        ((
            "        a = tl.load(a_ptrs, mask=offs_k[None, :] < end - k, other=0.0)\n"
            "        b = tl.load(b_ptrs, mask=offs_k[:, None] < end - k, other=0.0)\n",
            "        a = tl.load(a_ptrs)\n        b = tl.load(b_ptrs)\n",
        ),),
        VALUES, "backward", "tiled",
    ),
    Mutant(
        "grouped_matmul", "gradient of the matrices averaged over groups", "wrong gradient of one input",
        "the mean over the batch, which the loss takes already",
        (
            (
                "da = _rows(dc, b.transpose(1, 2), offs, name) if ctx.needs_input_grad[0] else None\n"
                "    db = _sums(a.t(), dc, offs, name) if",
                "da = _rows(dc, b.transpose(1, 2), offs, name) if ctx.needs_input_grad[0] else None\n"
                "    db = _sums(a.t(), dc, offs, name) / offs.shape[0] if",
            ),
        ),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "grouped_matmul", "offsets into c of 32 bits", "int32 overflow of offsets",
        "a row's number is 32-bit, and so is its product with N",
        (("c_ptr + offs_m.to(tl.int64)[:, None] * N", "c_ptr + offs_m[:, None] * N"),),
        VALUES, "forward", "tiled", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
