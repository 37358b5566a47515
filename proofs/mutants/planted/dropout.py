"""Mutants of dropout."""

from __future__ import annotations

from ..checks import FUNCTION, GRADIENTS, HUGE, UNCHANGED, VALUES, WRITTEN
from ..planting import Mutant

SAME_SEED, OTHER_SEED, KEEP_RATE = "same_seed_same_mask", "other_seed_other_mask", "keep_rate"
MASKS_AGREE = "masks_agree"

MUTANTS = (
    Mutant(
        "dropout", "seed ignored", "seed ignored",
        "a constant from a test was left in; every training step then drops the same elements",
        (("_philox(seed, first_call + tl", "_philox(seed * 0 + 7, first_call + tl"),),
        OTHER_SEED, "forward", "blocks", "fp32",
    ),
    Mutant(
        "dropout", "seed not kept for backward", "wrong gradient of one input",
        "the context keeps the arguments in front of those that it means",
        (("ctx.p, ctx.seed = inputs[-2:]", "ctx.p, ctx.seed = inputs[-2], 0"),),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "dropout", "residual dropped as well", "wrong order of operations",
        "the sum is formed first, as without dropout",
        (
            ("    out = tl.where(keep, x * scale, 0.0)\n    if HAS_RESIDUAL:\n        out += residual\n",
             "    if HAS_RESIDUAL:\n        x += residual\n    out = tl.where(keep, x * scale, 0.0)\n"),
        ),
        VALUES, "forward", "blocks",
    ),
    Mutant(
        "dropout", "numbers counted from the program's start", "mask hangs on the config",
        "what a program counts begins at 0, as its elements do",
        (("first_call = pid * (BLOCK // 4)", "first_call = pid * 0"),),
        SAME_SEED, "forward", "blocks",
    ),
    Mutant(
        "dropout", "backward draws from the next seed", "masks of forward and backward differ",
        "so that no number is used twice: here one is to be",
        (("_launch(dout, None, p, seed, config=config)", "_launch(dout, None, p, seed + 1, config=config)"),),
        MASKS_AGREE, "backward", "blocks",
    ),
    Mutant(
        "dropout", "not scaled", "wrong scale",
        "what is kept makes up for what is dropped, by 1 / (1 - p)",
        (("tl.where(keep, x * scale, 0.0)", "tl.where(keep, x, 0.0)"),),
        VALUES, "forward", "blocks",
    ),
    Mutant(
        "dropout", "scaled by the probability of being kept", "wrong scale",
        "the scale of inference in a training pass",
        (("return 1.0 / (1.0 - p) if p < 1 else 0.0", "return 1.0 - p"),),
        VALUES, "forward", "blocks",
    ),
    Mutant(
        "dropout", "threshold of 31 bits", "keep rate",
        "the random numbers are signed, and half of them are below 0",
        (("round(p * 2**32), 2**32 - 1) - 2**31", "round(p * 2**31), 2**31 - 1)"),),
        KEEP_RATE, "forward", "blocks",
    ),
    Mutant(
        "dropout", "one element in four always kept", "mask is not random",
        "a call gives four numbers, of which the last was taken for an unused one",
        (("tl.join(tl.join(a, c), tl.join(b, d))", "tl.join(tl.join(a, c), tl.join(b, d & 0x7FFFFFFF))"),),
        KEEP_RATE, "forward", "blocks",
    ),
    Mutant(
        "dropout", "one program too few", "missing last program",
        "n // BLOCK is right for every size that is tried by hand",
        (('triton.cdiv(x.numel(), config["BLOCK"])', 'max(1, x.numel() // config["BLOCK"])'),),
        WRITTEN, "forward", "blocks",
    ),
    Mutant(
        "dropout", "every block taken for full", "missing mask",
        "that a program's first element is there says nothing of its last",
        (("if (pid + 1) * BLOCK <= n_elements:", "if pid * BLOCK < n_elements:"),),
        WRITTEN, "backward", "blocks",
    ),
    Mutant(
        "dropout", "dropped in place", "input overwritten",
        "one allocation less; autograd does not need x",
        (("    out = torch.empty_like(x)\n", "    out = x\n"),),
        UNCHANGED, "forward", "blocks",
    ),
    Mutant(
        "dropout", "residual forgotten by the public function", "argument not passed on",
        "residual=None is the usual call, and the tests made it",
        (("None if residual is None else residual.contiguous()", "None"),),
        FUNCTION, "forward", "public",
    ),
    Mutant(
        "dropout", "offsets of 32 bits", "int32 overflow of offsets",
        "program_id is 32-bit, and so is its product",
        (("pid = tl.program_id(0).to(tl.int64)", "pid = tl.program_id(0)"),),
        VALUES, "forward", "blocks", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
