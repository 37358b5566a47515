"""Mutants of vector_add."""

from __future__ import annotations

from ..checks import FUNCTION, GRADIENTS, HUGE, NAN_INF, NON_CONTIGUOUS, UNCHANGED, VALUES, WRITTEN
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "vector_add", "grid rounded down", "missing last program",
        "n // BLOCK is right for every size that is tried by hand",
        ((
            'grid = (triton.cdiv(x.numel(), config["BLOCK"]),)',
            'grid = (max(1, x.numel() // config["BLOCK"]),)',
        ),),
        WRITTEN, "forward", "blocks",
    ),
    Mutant(
        "vector_add", "store one past the end", "out-of-bounds store by one",
        "<= for <; what follows the output is seldom looked at",
        (("mask = offs < n_elements\n", "mask = offs <= n_elements\n"),),
        WRITTEN, "forward", "blocks",
    ),
    Mutant(
        "vector_add", "no mask for the largest block", "config-dependent",
        "the sizes that were tuned are multiples of 8192, so a mask there seemed a waste",
        (("mask = offs < n_elements\n", "mask = (offs < n_elements) | (BLOCK >= 8192)\n"),),
        WRITTEN, "forward", "blocks",
    ),
    Mutant(
        "vector_add", "every block taken for full", "missing mask",
        "that a program's first element is there says nothing of its last",
        (("if first + BLOCK <= n_elements:", "if first < n_elements:"),),
        WRITTEN, "forward", "blocks",
    ),
    Mutant(
        "vector_add", "result kept by size", "stale output",
        "a buffer is kept for the next call of the same size, and the result with it",
        (
            ("def _launch(x, y, *, config):\n", "_KEPT = {}\n\n\ndef _launch(x, y, *, config):\n"),
            ("    return out\n", "    return _KEPT.setdefault((x.numel(), x.dtype), out)\n"),
        ),
        VALUES, "forward", "blocks",
    ),
    Mutant(
        "vector_add", "sum written over x", "input overwritten",
        "one allocation less, and the sum is right",
        (("    out = torch.empty_like(x)\n", "    out = x\n"),),
        UNCHANGED, "forward", "blocks",
    ),
    Mutant(
        "vector_add", "sum returned in fp32", "wrong dtype of the store",
        "arithmetic is fp32, and the output was left so",
        (("    out = torch.empty_like(x)\n", "    out = torch.empty_like(x, dtype=torch.float32)\n"),),
        FUNCTION, "forward", "public",
    ),
    Mutant(
        "vector_add", "NaN made 0", "NaN swallowed",
        "a guard against NaN, left in after a search for where they came from",
        (("out_ptr + offs, x + y, mask", "out_ptr + offs, tl.where(x + y == x + y, x + y, 0.0), mask"),),
        NAN_INF, "forward", "blocks",
    ),
    Mutant(
        "vector_add", "gradient of a difference", "wrong gradient of one input",
        "copied from a subtraction",
        (("(dout, dout)", "(dout, -dout)"),),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "vector_add", "strided inputs taken as they are", "non-contiguous input misread",
        "tests draw contiguous tensors",
        (("_vector_add(x.contiguous(), y.contiguous())", "_vector_add(x, y)"),),
        NON_CONTIGUOUS, "forward", "public",
    ),
    Mutant(
        "vector_add", "offsets of 32 bits", "int32 overflow of offsets",
        "program_id is 32-bit, and so is its product",
        (("first = tl.program_id(0).to(tl.int64) * BLOCK", "first = tl.program_id(0) * BLOCK"),),
        VALUES, "forward", "blocks", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
