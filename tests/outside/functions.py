"""Which public function stands for which of torch's operations, and how a sample of one becomes a call of the other.

A public function that no operation in torch's list answers to (``swiglu``, ``rope``, ``grouped_mm``, …) is in
:data:`WITHOUT_SAMPLES`: a new one must be put in one of the two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Call:
    """Arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def having(self, **kwargs: Any) -> Call:
        """The call with these keyword arguments, too."""
        return Call(self.args, {**self.kwargs, **kwargs})


def _as_it_is(call: Call) -> Call:
    return call


def _swapped(call: Call) -> Call:
    """The first two arguments change places: torch's sample puts first what its own test differentiates."""
    first, second, *others = call.args
    return Call((second, first, *others), call.kwargs)


def _alone(call: Call) -> Iterator[Call]:
    yield call


def _with_narrow_dtypes(call: Call) -> Iterator[Call]:
    """torch's samples cast to float64 alone, which the library has not: to fp32 and bf16, too."""
    yield call
    yield call.having(dtype=torch.float32)
    yield call.having(dtype=torch.bfloat16)


def _with_out_dtypes(call: Call) -> Iterator[Call]:
    """Without an out_dtype torch gives fp8, and the library bf16: both are named here, and fp32."""
    yield call.having(out_dtype=call.args[0].dtype)
    yield call.having(out_dtype=torch.bfloat16)
    yield call.having(out_dtype=torch.float32)


def _rms_norm(input, normalized_shape, weight=None, eps=None):
    """Where no eps is named torch takes that of its arithmetic, which is fp32 for dtypes up to fp32."""
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return torch.nn.functional.rms_norm(input, normalized_shape, weight, eps)


def _scaled_mm(a, b, scale_a, scale_b, out_dtype):
    return (a @ b) * scale_a * scale_b


def _largest_score(call: Call) -> float:
    query, key = (tensor.detach().double() for tensor in call.args[:2])
    scale = call.kwargs.get("scale") or query.shape[-1] ** -0.5
    return float((query @ key.mT * scale).abs().max())


@dataclass(frozen=True)
class Operation:
    """One entry of torch's list, by its name and its variant's name."""

    name: str
    variant: str = ""
    given: Callable[[Call], Call] = _as_it_is
    """The call of the library's function that a sample's call of torch's becomes."""
    calls: Callable[[Call], Iterator[Call]] = _alone
    """A sample's call, and what else of the kind is worth a call."""
    exact: Callable[..., Any] | None = None
    """Computes in float64 what results are judged by, where that is not torch's function of the same arguments."""
    exponent: Callable[[Call], float] | None = None
    """How large the arguments of exponentials get: rounded to fp32 they are a relative error of what is computed."""
    random: bool = False
    """Elements are dropped at random: one is either 0 or what it is without training, over 1 - p."""

    @property
    def label(self) -> str:
        """What a message calls it."""
        return f"{self.name} {self.variant}".strip()


_functional = functools.partial(str.__add__, "nn.functional.")

OPERATIONS: dict[str, tuple[Operation, ...]] = {
    "amax": (Operation("amax"),),
    "bmm": (Operation("bmm"), Operation("bmm", "triton_optimized")),
    "cross_entropy": (Operation(_functional("cross_entropy")),),
    "dropout": (Operation(_functional("dropout"), random=True),),
    "embedding": (Operation(_functional("embedding"), given=_swapped),),
    "gelu": (Operation(_functional("gelu")),),
    "layer_norm": (Operation(_functional("layer_norm")),),
    "linear": (Operation(_functional("linear")),),
    "linear_cross_entropy": tuple(
        Operation(_functional("linear_cross_entropy"), variant) for variant in ("", "chunked", "chunked_none")
    ),
    "log_softmax": (Operation("log_softmax"), Operation("log_softmax", "with_dtype", calls=_with_narrow_dtypes)),
    "matmul": (Operation("matmul"), Operation("__rmatmul__", given=_swapped), Operation("mm")),
    "max": tuple(Operation("max", variant) for variant in ("reduction_with_dim", "reduction_no_dim", "binary")),
    "mean": (Operation("mean"),),
    "multiply_add": (Operation("addcmul"),),
    "rms_norm": (Operation(_functional("rms_norm"), exact=_rms_norm),),
    "scaled_dot_product_attention": (Operation(_functional("scaled_dot_product_attention"), exponent=_largest_score),),
    "scaled_mm": (Operation("torch._scaled_mm", calls=_with_out_dtypes, exact=_scaled_mm),),
    "silu": (Operation(_functional("silu")),),
    "softmax": (Operation("softmax"), Operation("softmax", "with_dtype", calls=_with_narrow_dtypes)),
    "sum": (Operation("sum"),),
    "vector_add": (Operation("add"),),
}
"""The library's functions, each with the operations of torch whose samples it is given."""

_OF_ITS_OWN = "torch has no such function"

WITHOUT_SAMPLES = {
    "attention_fp8": _OF_ITS_OWN,
    "attention_varlen": "torch lists no samples of torch.nn.attention.varlen",
    "attention_with_lse": "torch's operations that give lse are lists of their own, for one backend each",
    "decode_attention": _OF_ITS_OWN,
    "dequantise_w4": _OF_ITS_OWN,
    "dequantise_w8": _OF_ITS_OWN,
    "grouped_mm": "torch lists no samples of it",
    "int_mm": "torch lists no samples of _int_mm",
    "layer_norm_linear": _OF_ITS_OWN,
    "linear_w4a16": _OF_ITS_OWN,
    "linear_w8a16": _OF_ITS_OWN,
    "pack_w4": _OF_ITS_OWN,
    "pack_w8": _OF_ITS_OWN,
    "quantise": _OF_ITS_OWN,
    "quantise_heads": _OF_ITS_OWN,
    "rope": _OF_ITS_OWN,
    "rope_qk": _OF_ITS_OWN,
    "swiglu": "torch lists no samples of it",
}
"""The other public functions, each with the reason why torch's list has nothing for it."""
