"""How a kernel file's launchers become operators: registered with torch, differentiable, cheap to call.

Kernels may import it and :mod:`atlas.declaration`, on which it rests.  A launcher runs once through Python; what it
allocated and launched is recorded, and a later call on tensors of the same kind repeats just that.
"""

from .autocast import FP32, autocast, autocast_rule, autocasting
from .constant import constant_result
from .launching import launch
from .operator import CustomOperator, Differentiable, Operator
from .transforms import derivative_wanted, torch_gradients, transformed

__all__ = [
    "FP32",
    "CustomOperator",
    "Differentiable",
    "Operator",
    "autocast",
    "autocast_rule",
    "autocasting",
    "constant_result",
    "derivative_wanted",
    "launch",
    "torch_gradients",
    "transformed",
]
