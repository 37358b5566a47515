"""Mutants of reduction."""

from __future__ import annotations

from ..checks import GRADIENTS, HUGE, NAN_INF, NON_CONTIGUOUS, VALUES, WRITTEN
from ..planting import Mutant

_ALL = {"outer": 1, "n": 20_003, "inner": 1}
_FEW_ROWS = {"outer": 5, "n": 45_001, "inner": 1}
_FEW_COLUMNS = {"outer": 1, "n": 9001, "inner": 7}
_MIDDLE = {"outer": 4, "n": 33, "inner": 65}

MUTANTS = (
    Mutant(
        "reduction", "blocks without the tail", "unwritten tail",
        "the loop covers whole blocks, and sizes that are tried by hand consist of them",
        (("if (at < length) & (full % splits == split) & (full != split):", "if at < 0:"),),
        VALUES, "forward", "stream", "fp32", sizes={**_FEW_ROWS, "op": "sum"},
    ),
    Mutant(
        "reduction", "the ends of a row taken by every program", "missing mask",
        "right for a row that one program has for itself",
        (("| (place < low)) & here\n", "| (place < low))\n"),),
        VALUES, "forward", "stream", "fp16", sizes={**_FEW_ROWS, "op": "sum"},
    ),
    Mutant(
        "reduction", "the last program combines one part too few", "off-by-one mask",
        "splits - 1 is the last part, and < was meant as <=",
        (("valid = (offs_s < splits) & mask", "valid = (offs_s < splits - 1) & mask"),),
        VALUES, "forward", "stream_twice", "fp32", sizes={**_ALL, "op": "sum"},
    ),
    Mutant(
        "reduction", "the last program but one combines", "race",
        "a ticket is the count before one's own, and was taken for the count after it",
        (("return (ticket & 0xFFFF) == splits - 1", "return (ticket & 0xFFFF) + 1 == splits - 1"),),
        VALUES, "forward", "columns", "fp32", sizes={**_FEW_COLUMNS, "op": "sum"},
    ),
    Mutant(
        "reduction", "a counter taken as it is found", "uninitialised scratch",
        "memory of torch.empty is often zero, in a test that is run alone always",
        (("        open_counter(counter_ptr)  # while the first block is on its way\n", "        pass\n"),),
        WRITTEN, "forward", "stream", "fp32", sizes={**_ALL, "op": "sum"},
    ),
    Mutant(
        "reduction", "mean over one element too many", "wrong scale",
        "n was taken for the last index; with many elements the error is below the dtype's rounding",
        (("value = tl.div_rn(value, tl.cast(n, tl.float32))", "value = tl.div_rn(value, tl.cast(n + 1, tl.float32))"),),
        VALUES, "forward", "columns", "fp32", sizes={**_MIDDLE, "op": "mean"},
    ),
    Mutant(
        "reduction", "maxima padded with zeros", "wrong identity of a masked load",
        "0 is the identity of sums; of maxima it is right as long as one element is positive",
        (('return 0.0 if OP == "sum" or OP == "mean" else -float("inf")', "return 0.0"),),
        VALUES, "forward", "columns", "bf16", sizes={"outer": 5, "n": 1, "inner": 3, "op": "amax"},
    ),
    Mutant(
        "reduction", "the last of several maxima", "ties",
        "values are the same; which index is right shows with ties alone, and 16-bit inputs are full of them",
        (("beside = tl.min(tl.where(attained, beside, NO_INDEX), axis=axis)",
          "beside = tl.max(tl.where(attained, beside, -1), axis=axis)"),),
        VALUES, "forward", "columns", "bf16", sizes={**_FEW_COLUMNS, "op": "max"},
    ),
    Mutant(
        "reduction", "NaN taken for the least", "NaN swallowed",
        "a maximum that compares drops NaN",
        (("tl.where(x == x, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)",
          "tl.where(x == x, bits ^ ((bits >> 31) & 0x7FFFFFFF), -0x7F800001)"),),
        NAN_INF, "forward", "columns", "fp32", sizes={**_MIDDLE, "op": "ties"},
    ),
    Mutant(
        "reduction", "ties that do not share", "wrong gradient",
        "with inputs drawn from a continuum there are none",
        (("share = tl.load(dout_ptr + offs_o, mask=mask_o, other=0.0).to(tl.float32) / ties",
          "share = tl.load(dout_ptr + offs_o, mask=mask_o, other=0.0).to(tl.float32)"),),
        VALUES, "backward", "tiles", "bf16", sizes={**_ALL, "op": "ties"},
    ),
    Mutant(
        "reduction", "the gradient of a mean undivided", "wrong scale",
        "taken over from the sum",
        (("    if ctx.mean:\n", "    if False:\n"),),
        GRADIENTS, "forward", "public", "fp32", sizes={**_MIDDLE, "op": "mean"},
    ),
    Mutant(
        "reduction", "another order of axes taken for contiguous", "non-contiguous input misread",
        "a view of permuted axes has the right shape",
        (("return x.permute(order).contiguous(), begin", "return x.permute(order), begin"),
         ("or not x.permute(order).is_contiguous():", "or False:")),
        NON_CONTIGUOUS, "forward", "public",
    ),
    Mutant(
        "reduction", "row offsets of 32 bits", "int32 overflow of offsets",
        "program_id is 32-bit, and so is its product with n",
        (("start = row.to(tl.int64) * n", "start = (row * n).to(tl.int64)"),),
        VALUES, "forward", "stream", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
