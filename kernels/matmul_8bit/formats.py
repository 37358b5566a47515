"""The dtypes of 8 bits: which pairs are multiplied, what products are rounded to, and how the interpreter takes them."""

import torch
from atlas.declaration import torch_dtype

DTYPES = ("fp8e4m3", "fp8e5m2", "int8")

NAMES = {torch_dtype(name): name for name in DTYPES}

FP8 = frozenset(NAMES) - {torch.int8}

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

FP8_PAIRS = frozenset({(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)})

OUT = frozenset({torch.bfloat16, torch.float16, torch.float32})


def as_interpreted(matrix):
    """On the CPU fp8 as fp32: the interpreter takes e4m3's NaN for a number, and rounds subnormals of e5m2 (3.7.1)."""
    return matrix.float() if matrix.dtype in FP8 and matrix.device.type == "cpu" else matrix
