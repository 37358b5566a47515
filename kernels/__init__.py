# ruff: noqa: F401  (an editor follows the imports, Python none of them)
"""Triton kernels as a library: ``from kernels import softmax, gelu``; modules of them are in :mod:`kernels.nn`.

Each file or package here is one kernel family, but for ``common`` (what families share), ``cuda`` (peers in CUDA C++),
``nn`` and ``tuned`` (configs).  A family is imported when a function of it is first asked for, so one that does not
import harms no other.
"""

import importlib
import importlib.util
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .activation import gelu, silu, swiglu
    from .attention import attention_varlen, attention_with_lse, scaled_dot_product_attention
    from .attention_decode import decode_attention
    from .attention_fp8 import attention_fp8, quantise_heads
    from .attention_masked import masked_attention
    from .batched_matmul import bmm
    from .cross_entropy import cross_entropy
    from .dropout import dropout
    from .embedding import embedding
    from .grouped_matmul import grouped_mm
    from .layer_norm import layer_norm
    from .layer_norm_linear import layer_norm_linear
    from .linear_cross_entropy import linear_cross_entropy
    from .matmul import matmul
    from .matmul_8bit import int_mm, quantise, scaled_mm
    from .matmul_epilogue import linear
    from .matmul_w4a16 import dequantise_w4, linear_w4a16, pack_w4
    from .matmul_w8a16 import dequantise_w8, linear_w8a16, pack_w8
    from .multiply_add import multiply_add
    from .reduction import amax, max, mean, sum
    from .rms_norm import rms_norm
    from .rope import rope, rope_qk
    from .softmax import log_softmax, softmax
    from .vector_add import vector_add

FUNCTIONS = {
    "gelu": "activation",
    "silu": "activation",
    "swiglu": "activation",
    "attention_varlen": "attention",
    "attention_with_lse": "attention",
    "scaled_dot_product_attention": "attention",
    "decode_attention": "attention_decode",
    "attention_fp8": "attention_fp8",
    "quantise_heads": "attention_fp8",
    "masked_attention": "attention_masked",
    "bmm": "batched_matmul",
    "cross_entropy": "cross_entropy",
    "dropout": "dropout",
    "embedding": "embedding",
    "grouped_mm": "grouped_matmul",
    "layer_norm": "layer_norm",
    "layer_norm_linear": "layer_norm_linear",
    "linear_cross_entropy": "linear_cross_entropy",
    "matmul": "matmul",
    "int_mm": "matmul_8bit",
    "quantise": "matmul_8bit",
    "scaled_mm": "matmul_8bit",
    "linear": "matmul_epilogue",
    "dequantise_w4": "matmul_w4a16",
    "linear_w4a16": "matmul_w4a16",
    "pack_w4": "matmul_w4a16",
    "dequantise_w8": "matmul_w8a16",
    "linear_w8a16": "matmul_w8a16",
    "pack_w8": "matmul_w8a16",
    "multiply_add": "multiply_add",
    "amax": "reduction",
    "max": "reduction",
    "mean": "reduction",
    "sum": "reduction",
    "rms_norm": "rms_norm",
    "rope": "rope",
    "rope_qk": "rope",
    "log_softmax": "softmax",
    "softmax": "softmax",
    "vector_add": "vector_add",
}
"""Every public function, and the family that has it."""

__all__ = sorted(FUNCTIONS)


class _Library(types.ModuleType):
    """A package whose attribute ``softmax`` is the public function of the family ``softmax``, not the family."""

    def __setattr__(self, name, value):
        if isinstance(value, types.ModuleType) and FUNCTIONS.get(name) == name:
            value = getattr(value, name, value)
        super().__setattr__(name, value)

    def __getattr__(self, name):
        if name in FUNCTIONS:
            value = getattr(importlib.import_module(f"{self.__name__}.{FUNCTIONS[name]}"), name)
            setattr(self, name, value)
            return value
        if not name.startswith("_") and importlib.util.find_spec(f"{self.__name__}.{name}"):
            return importlib.import_module(f"{self.__name__}.{name}")
        raise AttributeError(f"kernels has no {name!r}; there are {', '.join(__all__)}")

    def __dir__(self):
        return sorted({*super().__dir__(), *FUNCTIONS})


sys.modules[__name__].__class__ = _Library
