"""Mutants of matmul_epilogue."""

from __future__ import annotations

from ..checks import GRADIENTS, HUGE, NAN_INF, VALUES, WRITTEN
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "matmul_epilogue", "residual added before the activation", "wrong order of operations",
        "both are additions, and which comes first is a matter of the model",
        ((
            "    y = _activated(z, ACTIVATION, ACCURATE)\n    if residual_ptr is not None:\n"
            "        y += tl.load(residual_ptr + offs, mask=inside, other=0.0).to(tl.float32)\n",
            "    if residual_ptr is not None:\n"
            "        z += tl.load(residual_ptr + offs, mask=inside, other=0.0).to(tl.float32)\n"
            "    y = _activated(z, ACTIVATION, ACCURATE)\n",
        ),),
        VALUES, "forward", "tiled",
    ),
    Mutant(
        "matmul_epilogue", "right half in the place of the left", "unwritten tail",
        "two calls that differ in one argument",
        ((
            "_finish(right, bias_ptr, residual_desc, y_desc, z_desc, scale, m, n + half,",
            "_finish(right, bias_ptr, residual_desc, y_desc, z_desc, scale, m, n,",
        ),),
        WRITTEN, "forward", "persistent", "fp16",
    ),
    Mutant(
        "matmul_epilogue", "rows past the end added to dbias", "wrong identity",
        "1 is what a mask fills in for a product",
        ((
            "g = tl.load(dy_ptr + offs, mask=inside, other=0.0).to(tl.float32)",
            "g = tl.load(dy_ptr + offs, mask=inside, other=1.0).to(tl.float32)",
        ),),
        VALUES, "backward", "pull",
    ),
    Mutant(
        "matmul_epilogue", "relu by maximum", "NaN lost",
        "the formula says max(z, 0), and the GPU's maximum drops a NaN",
        (("z = tl.where(z < 0, 0.0, z)  #", "z = tl.where(z > 0, z, 0.0)  #"),),
        NAN_INF, "forward", "tiled",
    ),
    Mutant(
        "matmul_epilogue", "act(z) kept for backward", "wrong gradient of one input",
        "y is at hand, and for relu it would do",
        ((
            "tl.store(z_ptr + offs, z.to(z_ptr.dtype.element_ty), mask=inside)",
            "tl.store(z_ptr + offs, _activated(z, ACTIVATION, ACCURATE).to(z_ptr.dtype.element_ty), mask=inside)",
        ),),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "matmul_epilogue", "last group taken for full", "unwritten tail",
        "the number of rows of tiles was a multiple of GROUP_M wherever it was tried",
        ((
            "_grouped(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)\n    # Rows past M",
            "_grouped(tl.program_id(0), M + GROUP_M * BLOCK_M, N, BLOCK_M, BLOCK_N, GROUP_M)\n    # Rows past M",
        ),),
        WRITTEN, "forward", "tiled",
    ),
    Mutant(
        "matmul_epilogue", "offsets into y of 32 bits", "int32 overflow of offsets",
        "a row's number is 32-bit, and so is its product with N",
        ((
            "    offs = offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]\n    z = acc",
            "    offs = offs_m[:, None] * N + offs_n[None, :]\n    z = acc",
        ),),
        VALUES, "forward", "tiled", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
