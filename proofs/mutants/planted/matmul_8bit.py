"""Mutants of the products of 8-bit matrices."""

from __future__ import annotations

from atlas.declaration import Capability

from ..checks import FUNCTION, HUGE, NON_CONTIGUOUS, VALUES, WRITTEN
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "matmul_8bit", "scale of the row for the column", "swapped operands",
        "square matrices and equal scales do not tell one from the other",
        ((
            "acc = acc * tl.load(scale_b_ptr + offs_n, mask=offs_n < N, other=0.0)[None, :]",
            "acc = acc * tl.load(scale_a_ptr + offs_n, mask=offs_n < M, other=0.0)[None, :]",
        ),),
        VALUES, "forward", "tiled", "fp8e5m2",
    ),
    Mutant(
        "matmul_8bit", "bias before the scales", "wrong order of operations",
        "the bias belongs to C, and the scales came later",
        ((
            "        acc = acc.to(tl.float32)\n        if SCALES",
            "        acc = acc.to(tl.float32)\n        if bias_ptr is not None:\n"
            "            acc += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]\n"
            "            bias_ptr = None\n        if SCALES",
        ),),
        VALUES, "forward", "tiled", "fp8e4m3",
    ),
    Mutant(
        "matmul_8bit", "sums of int8 in 16 bits", "overflow of the accumulator",
        "small numbers were multiplied wherever it was tried",
        ((
            "        return tl.dot(a, b, acc, out_dtype=acc.dtype)",
            "        acc = tl.dot(a, b, acc, out_dtype=acc.dtype)\n"
            "        return acc.to(tl.int16).to(tl.int32) if acc.dtype == tl.int32 else acc",
        ),),
        VALUES, "forward", "tiled", "int8",
    ),
    Mutant(
        "matmul_8bit", "A not masked past K", "missing mask",
        "B is 0 there, and 0 times anything is 0: save for NaN",
        ((
            "a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0)",
            "a = tl.load(a_ptrs)",
        ), (
            "b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0.0)",
            "b = tl.load(b_ptrs)",
        )),
        VALUES, "forward", "tiled", "int8",
    ),
    Mutant(
        "matmul_8bit", "last group taken for full", "unwritten tail",
        "the number of rows of tiles was a multiple of GROUP_M wherever it was tried",
        (("rows = min(tiles_m - first_m, GROUP_M)", "rows = GROUP_M"),),
        WRITTEN, "forward", "tiled", "fp8e4m3",
    ),
    Mutant(
        "matmul_8bit", "second half of the columns over the first", "unwritten part",
        "with one part there is no second half",
        (("c_desc, right, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, m, n + HALF, M, N",
          "c_desc, right, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, m, n, M, N"),
         ("_PART_BYTES = 32768", "_PART_BYTES = 4096")),
        WRITTEN, "forward", "descriptor", "fp8e4m3",
    ),
    Mutant(
        "matmul_8bit", "B taken for columns", "non-contiguous input misread",
        "torch wants it so, and the strides were two arguments more",
        (("*a.stride(), *b.stride(),\n", "*a.stride(), 1, k,\n"),),
        NON_CONTIGUOUS, "forward", "public",
    ),
    Mutant(
        "matmul_8bit", "scales of one number read as rows", "out-of-bounds load",
        "a scale always had a dimension where it was tried",
        (("scale_a.reshape(()), scale_b.reshape(())", "scale_a.reshape(1, 1), scale_b.reshape(1, 1)"),),
        FUNCTION, "forward", "public", "fp8e4m3",
    ),
    Mutant(
        "matmul_8bit", "partial sums left to the tensor cores", "reduced precision",
        "random signs hide what is cut off; positive numbers lose a tenth over k = 8192",
        (('"PROMOTE": 0 if integers or fast else min(_PROMOTED, config["BLOCK_K"])', '"PROMOTE": 0'),),
        VALUES, "forward", "tiled", "fp8e4m3", gpu_only="the interpreter sums in fp32",
        needs=frozenset({Capability.WGMMA}),
    ),
    Mutant(
        "matmul_8bit", "the warps that multiply told to sum all of k", "reduced precision",
        "the flag was turned round on its way to the other file",
        (("promote=a.dtype != torch.int8 and not fast", "promote=a.dtype != torch.int8 and fast"),),
        VALUES, "forward", "specialized", "fp8e4m3", gpu_only="Gluon is not interpreted",
        needs=frozenset({Capability.WGMMA}),
    ),
    Mutant(
        "matmul_8bit", "offsets into C of 32 bits", "int32 overflow of offsets",
        "a row's number is 32-bit, and so is its product with N",
        (("c_ptrs = c_ptr + offs_m.to(tl.int64)[:, None] * N", "c_ptrs = c_ptr + offs_m[:, None] * N"),),
        VALUES, "forward", "tiled", "int8", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
