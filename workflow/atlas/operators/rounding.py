"""Tensor descriptors through which the copy engine rounds fp32 to tf32 on the way into shared memory.

Tensor cores that read fp32 operands in shared memory ignore the 13 bits that tf32 has not: the operand is truncated,
with twice the error of rounding, and towards zero, so that products are short by 0.07 % on average.  The copy engine
can round what it moves (CUtensorMapDataType TFLOAT32), which costs nothing; cuBLAS has it do so.
"""

from __future__ import annotations

import functools
from typing import Any

from triton.tools.tensor_descriptor import TensorDescriptor

_TFLOAT32 = 11
"""CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 of the CUDA driver API."""


def rounding_to_tf32(descriptor: TensorDescriptor) -> TensorDescriptor:
    """``descriptor``, of fp32, made to round what is loaded through it to tf32, to nearest."""
    _teach_driver()
    descriptor.round_f32_to_tf32 = True
    return descriptor


@functools.cache
def _teach_driver() -> None:
    """Let the launcher of Triton 3.6 take the flag, as that of 3.7 does; where it knows it, nothing is done."""
    if "round_f32_to_tf32" in TensorDescriptor.__dataclass_fields__:
        return
    from triton.backends.nvidia import driver

    expand = driver.make_tensordesc_arg

    def make_tensordesc_arg(arg: Any, metadata: dict[str, Any] | None) -> list[Any]:
        rounds = metadata is not None and getattr(arg, "round_f32_to_tf32", False)
        return expand(arg, {**metadata, "elem_type": _TFLOAT32} if rounds else metadata)

    driver.make_tensordesc_arg = make_tensordesc_arg
