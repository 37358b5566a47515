"""Mutants of matmul_w8a16; the kernels are those of matmul_w4a16."""

from __future__ import annotations

from ..checks import FUNCTION, GRADIENTS, VALUES
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "matmul_w8a16", "gradient by weights of 4 bits", "wrong gradient of one input",
        "the operator was copied from the other file, and forward asks the declaration",
        (('linear_operator("matmul_w8a16", 8,', 'linear_operator("matmul_w8a16", 4,'),),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "matmul_w8a16", "weights read as of 4 bits", "wrong constant",
        "the declaration was copied from the other file",
        ((
            'DECLARATION = declared(\n    "matmul_w8a16",\n    8,',
            'DECLARATION = declared(\n    "matmul_w8a16",\n    4,',
        ),),
        VALUES, "forward", "tiles",
    ),
    Mutant(
        "matmul_w8a16", "variants chosen for 4 bits", "wrong constant",
        "the operator asks the declaration it was written beside",
        (
            (
                "from kernels.matmul_w4a16 import call_linear",
                "from kernels.matmul_w4a16 import DECLARATION as W4\nfrom kernels.matmul_w4a16 import call_linear",
            ),
            ("8, lambda: DECLARATION)", "8, lambda: W4)"),
        ),
        FUNCTION, "forward", "public",
    ),
    Mutant(
        "matmul_w8a16", "group size not handed on", "argument ignored",
        "one scale for a row is the default, and what one tries",
        ((
            'call_linear("linear_w8a16", _linear, input, packed)',
            'call_linear("linear_w8a16", _linear, input, packed._replace(group_size=0))',
        ),),
        FUNCTION, "forward", "public",
    ),
)  # fmt: skip
