"""Mutants of layer_norm_linear."""

from __future__ import annotations

from ..checks import GRADIENTS, HUGE, OFFSET, VALUES, WRITTEN
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "layer_norm_linear", "deviation where its inverse is meant", "wrong scale",
        "std and rstd are one letter apart",
        (("tl.rsqrt((tl.sum(m2 + count", "tl.sqrt((tl.sum(m2 + count"),),
        VALUES, "forward", "fused",
    ),
    Mutant(
        "layer_norm_linear", "mean subtracted after the product", "cancellation",
        "x is multiplied as it is: equal in exact arithmetic, and right while the mean is small",
        (
            ("        a = (x.to(tl.float32) - mean - rest) * rstd\n", "        a = x.to(tl.float32) * rstd\n"),
            (
                "        acc = tl.dot(a.to(x.dtype).to(OPERAND), w.to(OPERAND), acc, input_precision=PRECISION)\n",
                "        s = tl.load(weight_ptr + k + offs_k, mask=inside, other=0.0).to(tl.float32)[:, None]\n"
                "        acc -= mean * rstd * tl.sum(s * w.to(tl.float32), axis=0)[None, :]\n"
                "        acc = tl.dot(a.to(x.dtype).to(OPERAND), w.to(OPERAND), acc, input_precision=PRECISION)\n",
            ),
        ),
        OFFSET, "forward", "fused", "fp32",
    ),
    Mutant(
        "layer_norm_linear", "columns not masked", "out-of-bounds store",
        "rows were masked; a wide y hides that its columns are not",
        ((
            "mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))",
            "mask=(offs_m[:, None] < M) & (offs_n[None, :] >= 0))",
        ),),
        WRITTEN, "forward", "fused",
    ),
    Mutant(
        "layer_norm_linear", "last group taken for full", "unwritten tail",
        "the number of rows of tiles was a multiple of GROUP_M wherever it was tried",
        (("height = min(tiles_m - first_m, GROUP_M)", "height = GROUP_M"),),
        WRITTEN, "forward", "fused",
    ),
    Mutant(
        "layer_norm_linear", "gradient of W from x as it is", "wrong gradient of one input",
        "x is what was kept; the product had the normalised matrix",
        (("rows_of_dy.t() @ out.view(-1, k)", "rows_of_dy.t() @ x.view(-1, k)"),),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "layer_norm_linear", "offsets into x of 32 bits", "int32 overflow of offsets",
        "a row's number is 32-bit, and so is its product with k",
        ((
            "offs_m = ((tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M).to(tl.int64)",
            "offs_m = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M",
        ),),
        VALUES, "forward", "fused", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
