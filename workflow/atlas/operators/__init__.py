"""How a kernel file's launchers become operators: registered with torch, differentiable, cheap to call.

Kernels may import it and :mod:`atlas.declaration`, on which it rests.  A launcher runs once through Python; what it
allocated and launched is recorded, and a later call on tensors of the same kind repeats just that.
"""

import importlib
import os

import triton

from .autocast import autocast, autocast_rule, autocasting, autocasts_to_fp32
from .clusters import Clustered
from .constant import constant_result
from .launching import launch
from .layout import as_laid_out, as_rows, permuted, shaped, slowest_first
from .native import contiguous, step
from .operator import CustomOperator, Differentiable, Operator
from .transforms import derivative_wanted, torch_gradients, transformed

__all__ = [
    "Clustered",
    "CustomOperator",
    "Differentiable",
    "Operator",
    "as_laid_out",
    "as_rows",
    "autocast",
    "autocast_rule",
    "autocasting",
    "autocasts_to_fp32",
    "constant_result",
    "contiguous",
    "derivative_wanted",
    "launch",
    "permuted",
    "shaped",
    "slowest_first",
    "step",
    "torch_gradients",
    "transformed",
]

if os.environ.get("KERNEL_ATLAS_WATCH"):  # `python -m atlas watch`: to be there before any operator is
    importlib.import_module("atlas.watching.recorder").begin()
if triton.knobs.runtime.interpret:
    importlib.import_module("atlas.operators.interpreted").take_turns()
