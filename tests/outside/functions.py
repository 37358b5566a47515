"""Which public function or module is named as which of torch's, and how a sample of one becomes a call of the other.

A public function that no operation in torch's list answers to (``swiglu``, ``rope``, ``grouped_mm``, …) is in
:data:`WITHOUT_SAMPLES`: a new one must be put in one of the two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import kernels.nn


@dataclass(frozen=True)
class Call:
    """Arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def having(self, **kwargs: Any) -> Call:
        """The call with these keyword arguments, too."""
        return Call(self.args, {**self.kwargs, **kwargs})


def as_function(module_class: type[torch.nn.Module]) -> Callable[..., Any]:
    """``function((args, kwargs) of the constructor, parameters by name, args, kwargs)`` of a module."""

    def function(constructor, parameters, args, kwargs):
        module = module_class(*constructor[0], **constructor[1])
        return torch.func.functional_call(module, parameters, tuple(args), kwargs)

    return function


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


def _out_of_the_table(call: Call) -> bool:
    """torch raises for it on a CPU, and ends the process' context on a GPU; the library's row is NaN."""
    _, parameters, args, _ = call.args
    index = args[0] if args else torch.empty(0)
    return "weight" in parameters and not index.is_floating_point() and int(index.max()) >= len(parameters["weight"])


def _weights(y: torch.Tensor) -> torch.Tensor:
    """Of softmax: y (dy - sum y dy), with dy of size 1."""
    return y


class _RMSNorm(torch.nn.RMSNorm):
    """As :func:`_rms_norm`."""

    def forward(self, input):
        return _rms_norm(input, self.normalized_shape, self.weight, self.eps)


def _scaled_mm(a, b, scale_a, scale_b, out_dtype):
    return (a @ b) * scale_a * scale_b


def _largest_score(call: Call) -> float:
    query, key = (tensor.detach().double() for tensor in call.args[:2])
    scale = call.kwargs.get("scale") or query.shape[-1] ** -0.5
    mask = call.kwargs.get("attn_mask")
    return float((query @ key.mT * scale + (0.0 if mask is None else mask.detach().double())).abs().max())


def _of_rounded_outputs(call: Call, out: torch.Tensor, dout: torch.Tensor) -> list[torch.Tensor | None]:
    """Of attention's gradients: what an output rounded to 16 bits adds to each, in units of the rounding.

    Backward takes sum(dout * out) of each row off its scores' gradients, dS = P (dP - sum(dout * out)), and has the
    output as it was stored, as flash attention has.  Where a row sees one key alone dS is 0, and this is all there is.
    """
    query, key = (tensor.detach().double() for tensor in call.args[:2])
    scale = call.kwargs.get("scale") or query.shape[-1] ** -0.5
    groups = query.shape[-3] // key.shape[-3] if query.dim() > 2 else 1
    keys = key.repeat_interleave(groups, -3) if groups > 1 else key
    mask = call.kwargs.get("attn_mask")
    scores = query @ keys.mT * scale + (0.0 if mask is None else mask.detach().double())
    if call.kwargs.get("is_causal"):
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -float("inf"))
    of_scores = scores.softmax(-1) * (dout * out).abs().sum(-1, keepdim=True)
    rounded = of_scores * scale
    of_keys = rounded.mT @ query.abs()
    if groups > 1:
        of_keys = of_keys.unflatten(-3, (-1, groups)).sum(-3)
    of_mask = [] if mask is None else [of_scores.sum_to_size(mask.shape)]
    return [(rounded @ keys.abs()).sum_to_size(query.shape), of_keys.sum_to_size(key.shape), None, *of_mask]


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
    module: bool = False
    """Of torch's list of modules: see :mod:`.modules`."""
    differs: Callable[[Call], bool] | None = None
    """Which calls are documented to give something else than torch: they are left out."""
    terms: Callable[[torch.Tensor], torch.Tensor] | None = None
    """How large the terms are of which a gradient is the sum where the output is so much: they may cancel."""
    roundings: Callable[[Call, torch.Tensor, torch.Tensor], list[torch.Tensor | None]] | None = None
    """Of a call, its output and the cotangent: for each gradient what the rounding of the output adds to it."""
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
    "scaled_dot_product_attention": (
        Operation(_functional("scaled_dot_product_attention"), exponent=_largest_score, roundings=_of_rounded_outputs),
    ),
    "scaled_mm": (Operation("torch._scaled_mm", calls=_with_out_dtypes, exact=_scaled_mm),),
    "silu": (Operation(_functional("silu")),),
    "softmax": (
        Operation("softmax", terms=_weights),
        Operation("softmax", "with_dtype", calls=_with_narrow_dtypes, terms=_weights),
    ),
    "sum": (Operation("sum"),),
    "vector_add": (Operation("add"),),
    "nn.Embedding": (Operation("nn.Embedding", module=True, differs=_out_of_the_table),),
    "nn.RMSNorm": (Operation("nn.RMSNorm", module=True, exact=as_function(_RMSNorm)),),
    "nn.Softmax": (Operation("nn.Softmax", module=True, terms=_weights),),
} | {
    f"nn.{name}": (Operation(f"nn.{name}", module=True),)
    for name in ("CrossEntropyLoss", "GELU", "LayerNorm", "Linear", "LinearCrossEntropyLoss", "LogSoftmax", "SiLU")
}
"""The library's functions and modules, each with the operations of torch whose samples it is given."""

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
    "masked_attention": "that of scaled_dot_product_attention, with lse",
    "linear_w4a16": _OF_ITS_OWN,
    "linear_w8a16": _OF_ITS_OWN,
    "pack_w4": _OF_ITS_OWN,
    "pack_w8": _OF_ITS_OWN,
    "quantise": _OF_ITS_OWN,
    "quantise_heads": _OF_ITS_OWN,
    "rope": _OF_ITS_OWN,
    "rope_qk": _OF_ITS_OWN,
    "swiglu": "torch lists no samples of it",
    "nn.Dropout": "torch lists no samples of the module",
    "nn.LayerNormLinear": _OF_ITS_OWN,
    "nn.LinearW4": _OF_ITS_OWN,
    "nn.LinearW8": _OF_ITS_OWN,
    "nn.RotaryEmbedding": _OF_ITS_OWN,
    "nn.SelfAttention": _OF_ITS_OWN,
    "nn.SwiGLU": _OF_ITS_OWN,
}
"""The other public functions and modules, each with the reason why torch's list has nothing for it."""


def public(name: str) -> Callable[..., Any]:
    """The library's function of a name in :data:`OPERATIONS`; a module as a function."""
    if name.startswith("nn."):
        return as_function(getattr(kernels.nn, name.removeprefix("nn.")))
    return getattr(kernels, name)
