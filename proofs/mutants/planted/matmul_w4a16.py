"""Mutants of matmul_w4a16."""

from __future__ import annotations

from atlas.declaration import Capability

from ..checks import GRADIENTS, NON_CONTIGUOUS, VALUES, WRITTEN
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "matmul_w4a16", "zero points of row g for row g + 8", "wrong operand",
        "the two rows of a lane were loaded by two lines, and one was edited",
        ((
            "scales_1, zeros_1 = _scale_and_zero(scales_ptr, zeros_ptr, offs + 1, inside)",
            "scales_1, zeros_1 = _scale_and_zero(scales_ptr, zeros_ptr, offs, inside)",
        ),),
        VALUES, "forward", "tiles",
    ),
    Mutant(
        "matmul_w4a16", "one scale for a packed tile", "config-dependent",
        "a tile has 64 columns, and so have the groups that one tries: 64 and 128",
        (("k += word // 2 * 32", "k += word // 4 * 32"),),
        VALUES, "forward", "tiles",
    ),
    Mutant(
        "matmul_w4a16", "gradient without zero points", "wrong gradient of one input",
        "symmetric weights have none, and were tried first",
        (("ctx.save_for_backward(words, scales, zeros)", "ctx.save_for_backward(words, scales, None)"),),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "matmul_w4a16", "x taken for contiguous", "non-contiguous input misread",
        "reshape copies what it cannot view, and two dimensions it can",
        (("rows = input.reshape(-1, k).contiguous()", "rows = input.reshape(-1, k)"),),
        NON_CONTIGUOUS, "forward", "public",
    ),
    Mutant(
        "matmul_w4a16", "columns not masked", "out-of-bounds store",
        "rows were masked; a wide y hides that its columns are not",
        ((
            "acc.to(y_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))",
            "acc.to(y_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] >= 0))",
        ),),
        WRITTEN, "forward", "tiles",
    ),
    Mutant(
        "matmul_w4a16", "x not masked past K", "missing mask",
        "weights are 0 there, and 0 times anything is 0: save for NaN and infinity",
        (("EVEN_K=k % config[\"BLOCK_K\"] == 0", "EVEN_K=k % 32 == 0"),),
        VALUES, "forward", "tiles",
    ),
    Mutant(
        "matmul_w4a16", "minus 128 without the zero point of the second row", "wrong operand",
        "two registers of an instruction belong to one row, and two to another",
        ((
            "from kernels._packed_fragments import launch_fragments\n",
            "import kernels._packed_fragments as decode\nfrom kernels._packed_fragments import launch_fragments\n\n"
            "_both_rows_asm = decode._unpack_4_asm\n"
            "decode._unpack_4_asm = lambda bf16: _both_rows_asm(bf16).replace('$22', '$20')\n",
        ),),
        VALUES, "forward", "fragments", gpu_only="the variant needs tensor cores",
        needs=frozenset({Capability.TENSOR_CORES}),
    ),
)  # fmt: skip
