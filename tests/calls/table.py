"""One plain call of each public function, beside torch's way to the same: a table for tests of all functions alike.

Tensors are small, drawn on the CPU and brought to a device, so that they are the same everywhere.  Where torch has no
function of the name, its way is written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import kernels
import kernels.nn

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
TOLERANCE = {FP32: 1e-4, FP16: 1e-2, BF16: 6e-2, torch.float64: 1e-4}
"""Of a result in that dtype, times the largest expected magnitude or 1: far above rounding, far below any mistake."""


@dataclass(frozen=True)
class Call:
    """A call of ``kernels.<function>``.

    ``shapes`` are of the normally distributed inputs, which come in the dtype that a test asks for; ``others`` makes
    what has a dtype of its own.  ``ours`` takes the function, then all inputs by name; ``torch`` takes the inputs, and
    is what shapes, dtypes and types of results are compared with.  ``exact`` (by default ``torch``) takes the inputs in
    float64 and gives the values; None where there is nothing to compare with.  ``gradients`` names the inputs that have
    one (by default all of ``shapes``).
    """

    function: str
    shapes: Mapping[str, tuple[int, ...]]
    ours: Callable[..., Any]
    torch: Callable[..., Any] | None
    others: Callable[[], dict[str, Any]] = dict
    exact: Callable[..., Any] | None = None
    gradients: tuple[str, ...] | None = None
    dtype: torch.dtype = FP32
    special: str = ""
    """What is passed beside the plain arguments."""
    tolerance: float = 0.0
    """Where the function is coarser than the dtype of its result."""
    captured: bool = True
    """Whether a CUDA graph may hold it; what packs weights reads them on the host."""
    random: bool = False
    mixes: bool = False
    """Whether autocast brings inputs of different dtypes together."""

    @property
    def label(self) -> str:
        """For a test's id."""
        return f"{self.function}, {self.special}" if self.special else self.function

    @property
    def wanting(self) -> tuple[str, ...]:
        """The inputs that have a gradient."""
        return tuple(self.shapes) if self.gradients is None else self.gradients

    def draw(self, device: Any, dtype: torch.dtype | None = None, seed: int = 0) -> dict[str, Any]:
        """The inputs on a device; a device "meta" has no values to draw."""
        generator = torch.Generator().manual_seed(seed)
        drawn = {
            name: torch.randn(shape, generator=generator).to(dtype or self.dtype) for name, shape in self.shapes.items()
        }
        return on({**drawn, **self.others()}, device)

    def run(self, inputs: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        """The function's tensors for these inputs."""
        return tensors(self.ours(getattr(kernels, self.function), **inputs))

    def run_torch(self, inputs: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        """Those of torch."""
        return tensors(self.torch(**inputs))

    def run_exact(self, inputs: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        """What they should be: floating inputs of ``shapes`` are taken to float64."""
        way = self.exact or self.torch
        return tensors(way(**{name: x.double() if name in self.shapes else x for name, x in inputs.items()}))

    def leaves(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs, those that have a gradient as leaves that want one."""
        return {name: x.detach().requires_grad_() if name in self.wanting else x for name, x in inputs.items()}


def on(inputs: Any, device: Any) -> Any:
    """The same with every tensor on a device."""
    return pytree.tree_map_only(torch.Tensor, lambda x: x.to(device), inputs)


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    """A result's tensors, whatever holds them."""
    return tuple(x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor))


def assert_near(found: Any, expected: Any, call: Call, dtype: torch.dtype, what: str = "output") -> None:
    """Integers must be equal, others within the tolerance of ``dtype``."""
    found, expected = tensors(found), tensors(expected)
    assert len(found) == len(expected), f"{what}: {len(found)} tensors, not {len(expected)}"
    for number, (x, y) in enumerate(zip(found, expected, strict=True)):
        assert x.shape == y.shape, f"{what} {number}: {tuple(x.shape)}, not {tuple(y.shape)}"
        if not y.is_floating_point():
            assert torch.equal(x, y), f"{what} {number} differs"
            continue
        x, y = x.detach().double().cpu(), y.detach().double().cpu()
        most = max(TOLERANCE[dtype], call.tolerance) * max(1.0, float(y.abs().max()))
        error = float((x - y).abs().max())
        assert error <= most, f"{what} {number}: off by {error:.3g}, {most:.3g} allowed"


def weighted(results: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """A number that depends on every element of every floating result differently."""
    parts = []
    for number, x in enumerate(results):
        if x.is_floating_point():
            weights = torch.cos(torch.arange(x.numel(), device=x.device, dtype=torch.float32) + number)
            parts.append((x.reshape(-1) * weights.to(x.dtype)).sum())
    return torch.stack(parts).sum() if len(parts) > 1 else parts[0]


def _attention(query, key, value, causal=False, added=0.0, window=None):
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    s = query @ key.mT * query.shape[-1] ** -0.5 + added
    before, after = (None, 0) if causal else window or (None, None)
    seen = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device)
    seen = seen if after is None else seen.tril(after)
    seen = seen if before is None else seen.triu(-before)
    s = s.masked_fill(~seen, -math.inf)
    return s.softmax(-1) @ value, s.logsumexp(-1)


def _masked(query, key, value, attn_mask, window):
    groups = query.shape[1] // key.shape[1]
    lse = _attention(query, key, value, False, attn_mask, window)[1].to(torch.promote_types(query.dtype, FP32))
    seen = (
        torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=key.device).triu(-window[0]).tril(window[1])
    )
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(query, key, value, attn_mask.masked_fill(~seen, -math.inf)), lse


def _seen():
    """A mask of bools, of which one query sees nothing."""
    seen = torch.rand(2, 1, 16, 24, generator=torch.Generator().manual_seed(5)) > 0.3
    seen[0, 0, 3] = False
    return {"seen": seen}


def _typed_attention(query, key, value, causal=False):
    out = F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)
    return out, _attention(query, key, value, causal)[1].float()


_ENDS = (0, 5, 12)
"""Where sequences of different lengths begin and end."""


def _varlen(query, key, value, ends, window=None):
    found = []
    for first, last in pairwise(_ENDS):
        q, k, v = (x[first:last].transpose(0, 1)[None] for x in (query, key, value))
        found.append(_attention(q, k, v, window=window))
    out = torch.cat([out[0].transpose(0, 1) for out, _ in found])
    return out, torch.cat([lse[0] for _, lse in found], dim=1).to(torch.promote_types(query.dtype, FP32))


_FILLED = (7, 20)
"""Rows of each cache that are filled."""


def _decoded(q, k_cache, v_cache, lens):
    rows = []
    for number, filled in enumerate(_FILLED):
        k, v = (x[number : number + 1, :, :filled] for x in (k_cache, v_cache))
        rows.append(_attention(q[number : number + 1], k, v)[0])
    return torch.cat(rows)


def _heads_in_e4m3():
    generator = torch.Generator().manual_seed(1)
    made = {}
    for name, heads, length in (("query", 2, 16), ("key", 1, 24), ("value", 1, 24)):
        made[name] = torch.randn(1, heads, length, 32, generator=generator).to(torch.float8_e4m3fn)
        made[f"{name}_scale"] = torch.full((1, heads), 0.5)
    return made


def _fp8_attention(query, key, value, query_scale, key_scale, value_scale):
    wide = [
        x.float() * scale[..., None, None]
        for x, scale in ((query, query_scale), (key, key_scale), (value, value_scale))
    ]
    out, lse = _attention(*wide)
    return out.to(BF16), lse


def _grouped(mat_a, mat_b, offs):
    ends = (0, 3, 3, 12)
    with torch._C._DisableAutocast():  # to which torch's grouped_mm pays no attention
        return torch.cat([mat_a[ends[g] : ends[g + 1]] @ mat_b[g] for g in range(3)])


def _rotated(x, cos, sin):
    cos, sin = (t[None, :, None].to(x.dtype) for t in (cos, sin))
    one, two = x.chunk(2, dim=-1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


def _tables():
    angles = torch.linspace(0.0, 6.0, 5 * 8).view(5, 8)
    return {"cos": angles.cos(), "sin": angles.sin()}


def _dropped(input, residual):
    kept = kernels.dropout(torch.ones(input.shape, device=input.device), 0.5, seed=7)
    return input * kept.to(input.dtype) + residual


def _weight(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(FP16)


def _packed_4():
    return {"packed": kernels.pack_w4(_weight(48, 64), 32)}


def _packed_8():
    return {"packed": kernels.pack_w8(_weight(48, 64))}


def _int8(*shape):
    return torch.randint(-9, 9, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(2))


def _normed(name, input, weight, linear_weight=None):
    """A norm whose weight is rounded to the input's dtype, which torch asks for."""
    norm = F.rms_norm if name == "rms_norm" else F.layer_norm
    out = norm(input, (40,), weight.to(input.dtype))
    return out if linear_weight is None else F.linear(out, linear_weight)


CALLS: tuple[Call, ...] = (
    Call("gelu", {"x": (6, 40)}, lambda f, x: f(x), lambda x: F.gelu(x)),
    Call("gelu", {"x": (6, 40)}, lambda f, x: f(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh"),
         special="tanh"),
    Call("silu", {"x": (6, 40)}, lambda f, x: f(x), lambda x: F.silu(x)),
    Call("swiglu", {"gate": (6, 40), "up": (6, 40)}, lambda f, gate, up: f(gate, up),
         lambda gate, up: F.silu(gate) * up),
    Call("swiglu", {"gate": (6, 40)}, lambda f, gate: f(gate),
         lambda gate: F.silu(gate.chunk(2, -1)[0]) * gate.chunk(2, -1)[1], special="both in one"),
    Call("scaled_dot_product_attention", {"query": (1, 2, 16, 32), "key": (1, 1, 24, 32), "value": (1, 1, 24, 32)},
         lambda f, query, key, value: f(query, key, value, enable_gqa=True),
         lambda query, key, value: F.scaled_dot_product_attention(query, key, value, enable_gqa=True),
         exact=lambda query, key, value: _attention(query, key, value)[0], mixes=True),
    Call("scaled_dot_product_attention", {"query": (2, 2, 16, 32), "key": (2, 1, 24, 32), "value": (2, 1, 24, 32)},
         lambda f, query, key, value, seen: f(query, key, value, seen, enable_gqa=True),
         lambda query, key, value, seen: F.scaled_dot_product_attention(query, key, value, seen, enable_gqa=True),
         others=_seen, special="a mask of bools"),
    Call("scaled_dot_product_attention", {"query": (1, 2, 16, 48), "key": (1, 1, 24, 48), "value": (1, 1, 24, 32)},
         lambda f, query, key, value: f(query, key, value, enable_gqa=True),
         lambda query, key, value: F.scaled_dot_product_attention(query, key, value, enable_gqa=True),
         exact=lambda query, key, value: _attention(query, key, value)[0], mixes=True,
         special="values of another size"),
    Call("scaled_dot_product_attention", {"query": (2, 3, 2, 16, 32), "key": (3, 2, 24, 32), "value": (3, 2, 24, 32)},
         lambda f, query, key, value: f(query, key, value),
         lambda query, key, value: F.scaled_dot_product_attention(query, key, value), mixes=True,
         special="two dimensions of batch, one of them broadcast"),
    Call("scaled_dot_product_attention", {"query": (2, 16, 32), "key": (2, 24, 32), "value": (2, 24, 32),
                                          "attn_mask": (2, 16, 24)},
         lambda f, query, key, value, attn_mask: f(query, key, value, attn_mask),
         lambda query, key, value, attn_mask: F.scaled_dot_product_attention(query, key, value, attn_mask),
         mixes=True, special="no batch, a mask of numbers"),
    Call("masked_attention", {"query": (1, 2, 16, 32), "key": (1, 1, 24, 32), "value": (1, 1, 24, 32),
                              "attn_mask": (2, 16, 24)},
         lambda f, **x: f(**x, window=(9, 4), enable_gqa=True), lambda **x: _masked(**x, window=(9, 4)), mixes=True),
    Call("attention_with_lse", {"query": (1, 2, 16, 32), "key": (1, 2, 16, 32), "value": (1, 2, 16, 32)},
         lambda f, query, key, value: f(query, key, value, is_causal=True),
         lambda query, key, value: _typed_attention(query, key, value, True),
         exact=lambda query, key, value: _attention(query, key, value, True), mixes=True),
    Call("attention_varlen", {"query": (12, 2, 32), "key": (12, 1, 32), "value": (12, 1, 32)},
         lambda f, query, key, value, ends: f(query, key, value, ends, ends, 7, 7), _varlen,
         others=lambda: {"ends": torch.tensor(_ENDS, dtype=torch.int32)}),
    Call("attention_varlen", {"query": (12, 2, 32), "key": (12, 1, 32), "value": (12, 1, 32)},
         lambda f, query, key, value, ends: f(query, key, value, ends, ends, 7, 7, window=(2, 1)),
         lambda query, key, value, ends: _varlen(query, key, value, ends, (2, 1)),
         others=lambda: {"ends": torch.tensor(_ENDS, dtype=torch.int32)}, special="a window"),
    Call("decode_attention", {"q": (2, 2, 1, 32), "k_cache": (2, 1, 20, 32), "v_cache": (2, 1, 20, 32)},
         lambda f, q, k_cache, v_cache, lens: f(q, k_cache, v_cache, lens), _decoded, dtype=FP16, gradients=(),
         others=lambda: {"lens": torch.tensor(_FILLED, dtype=torch.int32)}),
    Call("attention_fp8", {}, lambda f, **x: f(**x, enable_gqa=True), _fp8_attention, others=_heads_in_e4m3,
         tolerance=0.1),
    Call("quantise_heads", {"x": (1, 2, 6, 16)}, lambda f, x: f(x), None, gradients=()),
    Call("bmm", {"input": (2, 24, 32), "mat2": (2, 32, 40)}, lambda f, input, mat2: f(input, mat2),
         lambda input, mat2: torch.bmm(input, mat2), mixes=True),
    Call("cross_entropy", {"input": (6, 50)}, lambda f, input, target: f(input, target),
         lambda input, target: F.cross_entropy(input, target),
         others=lambda: {"target": torch.tensor([3, 0, 49, -100, 7, 7])}),
    Call("cross_entropy", {"input": (2, 10, 3, 4)},
         lambda f, input, target, weight: f(input, target, weight.to(input.dtype), label_smoothing=0.1),
         lambda input, target, weight: F.cross_entropy(input, target, weight.to(input.dtype), label_smoothing=0.1),
         others=lambda: {"target": (torch.arange(24).view(2, 3, 4) * 7) % 10, "weight": torch.linspace(0.1, 1.0, 10)},
         special="weights, places behind"),
    Call("cross_entropy", {"input": (6, 50), "target": (6, 50)}, lambda f, input, target: f(input, target),
         lambda input, target: F.cross_entropy(input, target), special="probabilities"),
    Call("dropout", {"input": (6, 40), "residual": (6, 40)},
         lambda f, input, residual: f(input, 0.5, residual=residual, seed=7),
         lambda input, residual: F.dropout(input, 0.5) + residual, exact=_dropped, random=True),
    Call("embedding", {"weight": (20, 24)}, lambda f, weight, rows: f(rows, weight, padding_idx=1),
         lambda weight, rows: F.embedding(rows, weight, padding_idx=1),
         others=lambda: {"rows": torch.tensor([[3, 0, 19], [1, 3, 3]])}),
    Call("grouped_mm", {"mat_a": (12, 32), "mat_b": (3, 32, 40)},
         lambda f, mat_a, mat_b, offs: f(mat_a, mat_b, offs=offs), _grouped,
         others=lambda: {"offs": torch.tensor([3, 3, 12], dtype=torch.int32)}),
    Call("layer_norm", {"input": (6, 40), "weight": (40,), "bias": (40,)},
         lambda f, input, weight, bias: f(input, (40,), weight, bias),
         lambda input, weight, bias: F.layer_norm(input, (40,), weight, bias), mixes=True),
    Call("layer_norm", {"input": (6, 40), "weight": (40,), "bias": (40,), "residual": (6, 40)},
         lambda f, input, weight, bias, residual: f(input, 40, weight, bias, residual=residual),
         lambda input, weight, bias, residual: (F.layer_norm(input + residual, (40,), weight, bias), input + residual),
         special="residual"),
    Call("layer_norm_linear", {"input": (6, 40), "linear_weight": (24, 40), "linear_bias": (24,), "weight": (40,),
                               "bias": (40,)},
         lambda f, **x: f(**x),
         lambda input, linear_weight, linear_bias, weight, bias: F.linear(
             F.layer_norm(input, (40,), weight, bias), linear_weight, linear_bias), mixes=True),
    *(Call(name, {"input": (6, 40), **({"linear_weight": (24, 40)} if "linear" in name else {})},
           lambda f, name=name, **x: f(**x, **({} if "linear" in name else {"normalized_shape": (40,)})),
           lambda input, name=name, **x: _normed(name, input, **x), dtype=BF16, special="fp32 weight",
           others=lambda: {"weight": torch.linspace(0.1, 1.0, 40)}, mixes=True)
      for name in ("layer_norm", "layer_norm_linear", "rms_norm")),
    Call("linear_cross_entropy", {"input": (6, 32), "linear_weight": (50, 32), "linear_bias": (50,)},
         lambda f, input, linear_weight, linear_bias, target: f(input, linear_weight, target, linear_bias=linear_bias),
         lambda input, linear_weight, linear_bias, target: F.cross_entropy(
             F.linear(input, linear_weight, linear_bias), target),
         others=lambda: {"target": torch.tensor([3, 0, 49, -100, 7, 7])}, mixes=True),
    Call("matmul", {"input": (2, 12, 32), "other": (32, 40)}, lambda f, input, other: f(input, other),
         lambda input, other: torch.matmul(input, other), mixes=True),
    Call("int_mm", {}, lambda f, a, b: f(a, b), lambda a, b: (a.float() @ b.float()).to(torch.int32),
         others=lambda: {"a": _int8(24, 32), "b": _int8(32, 40)}),
    Call("quantise", {"x": (6, 40)}, lambda f, x: f(x), None, gradients=()),
    Call("scaled_mm", {}, lambda f, a, b, one, two, bias: f(a, b, one, two, bias),
         lambda a, b, one, two, bias: ((a.float() @ b.float()) * one * two + bias.float()).to(BF16),
         others=lambda: {"a": _int8(24, 32), "b": _int8(32, 40), "one": torch.full((24, 1), 0.1),
                         "two": torch.full((1, 40), 0.2), "bias": torch.ones(40)}, tolerance=0.02),
    Call("linear", {"input": (2, 3, 32), "weight": (24, 32), "bias": (24,)},
         lambda f, input, weight, bias: f(input, weight, bias),
         lambda input, weight, bias: F.linear(input, weight, bias), mixes=True),
    *(Call("linear", {"input": (6, 32), "weight": (24, 32), "bias": (24,), "residual": (6, 24)},
           lambda f, input, weight, bias, residual, word=word: f(input, weight, bias, activation=word,
                                                                 residual=residual),
           lambda input, weight, bias, residual, function=function: function(F.linear(input, weight, bias)) + residual,
           special=f"{word} and residual")
      for word, function in (("gelu", F.gelu), ("silu", F.silu))),
    Call("linear_w4a16", {"input": (6, 64)}, lambda f, input, packed: f(input, packed),
         lambda input, packed: F.linear(input, kernels.dequantise_w4(packed).to(input.dtype)),
         others=_packed_4, dtype=FP16),
    Call("linear_w8a16", {"input": (6, 64)}, lambda f, input, packed: f(input, packed),
         lambda input, packed: F.linear(input, kernels.dequantise_w8(packed).to(input.dtype)),
         others=_packed_8, dtype=FP16),
    Call("dequantise_w4", {}, lambda f, packed: f(packed), None, others=_packed_4),
    Call("dequantise_w8", {}, lambda f, packed: f(packed), None, others=_packed_8),
    Call("pack_w4", {"weight": (48, 64)}, lambda f, weight: f(weight, 32), None, dtype=FP16, gradients=(),
         captured=False),
    Call("pack_w8", {"weight": (48, 64)}, lambda f, weight: f(weight), None, dtype=FP16, gradients=(),
         captured=False),
    Call("multiply_add", {"input": (6, 40), "tensor1": (6, 40), "tensor2": (6, 40)},
         lambda f, input, tensor1, tensor2: f(input, tensor1, tensor2, value=0.5),
         lambda input, tensor1, tensor2: torch.addcmul(input, tensor1, tensor2, value=0.5)),
    *(Call(name, {"x": (6, 40)}, lambda f, x: f(x, -1), lambda x, name=name: getattr(torch, name)(x, -1),
           special="rows") for name in ("sum", "mean", "amax")),
    *(Call(name, {"x": (6, 40)}, lambda f, x: f(x), lambda x, name=name: getattr(torch, name)(x))
      for name in ("sum", "mean", "amax", "max")),
    Call("max", {"x": (6, 40)}, lambda f, x: f(x, 1), lambda x: torch.max(x, 1), special="rows"),
    *(Call(name, {"x": (3, 5, 4, 6)}, lambda f, x: f(x, (0, 2), True), special="axes apart",
           torch=lambda x, name=name: getattr(torch, name)(x, (0, 2), True)) for name in ("sum", "mean", "amax")),
    *(Call(name, {"x": (6, 40)}, lambda f, x: f(x[:, :30], -1), special="gaps",
           torch=lambda x, name=name: getattr(torch, name)(x[:, :30], -1)) for name in ("sum", "amax", "max")),
    Call("rms_norm", {"input": (6, 40), "weight": (40,)}, lambda f, input, weight: f(input, (40,), weight, 1e-5),
         lambda input, weight: F.rms_norm(input, (40,), weight, 1e-5), mixes=True),
    Call("rms_norm", {"input": (6, 40), "weight": (40,), "residual": (6, 40)},
         lambda f, input, weight, residual: f(input, 40, weight, 1e-5, residual),
         lambda input, weight, residual: (F.rms_norm(input + residual, (40,), weight, 1e-5), input + residual),
         special="residual"),
    Call("rope", {"x": (2, 5, 2, 16)}, lambda f, x, cos, sin: f(x, cos, sin), _rotated, others=_tables),
    Call("rope_qk", {"q": (2, 5, 2, 16), "k": (2, 5, 1, 16)}, lambda f, q, k, cos, sin: f(q, k, cos, sin),
         lambda q, k, cos, sin: (_rotated(q, cos, sin), _rotated(k, cos, sin)), others=_tables),
    Call("softmax", {"x": (6, 40)}, lambda f, x: f(x, -1), lambda x: F.softmax(x, -1)),
    Call("softmax", {"x": (2, 6, 40), "mask": (6, 40)}, lambda f, x, mask: f(x, -1, mask=mask),
         lambda x, mask: F.softmax(x + mask, -1), special="mask", gradients=("x",)),
    Call("log_softmax", {"x": (6, 40)}, lambda f, x: f(x, -1), lambda x: F.log_softmax(x, -1)),
    Call("vector_add", {"x": (6, 40), "y": (6, 40)}, lambda f, x, y: f(x, y), lambda x, y: torch.add(x, y)),
    Call("vector_add", {"x": (3, 6, 40), "y": (6, 1)}, lambda f, x, y: f(x, y), lambda x, y: torch.add(x, y),
         special="broadcast"),
    Call("multiply_add", {"input": (40,), "tensor1": (6, 40), "tensor2": (6, 1)},
         lambda f, input, tensor1, tensor2: f(input, tensor1, tensor2, value=0.5),
         lambda input, tensor1, tensor2: torch.addcmul(input, tensor1, tensor2, value=0.5), special="broadcast"),
    Call("swiglu", {"gate": (6, 40), "up": (40,)}, lambda f, gate, up: f(gate, up),
         lambda gate, up: F.silu(gate) * up, special="broadcast"),
)  # fmt: skip


def repeats(device: Any) -> range:
    """How often a call is made that counts: where it is recorded, the third repeats the recording."""
    return range(3 if device == "cuda" else 1)


DIFFERENTIABLE = tuple(call for call in CALLS if call.wanting)


@dataclass(frozen=True)
class Module:
    """A module of ``kernels.nn``: how it is made, and the shapes of its inputs (or what makes them)."""

    name: str
    make: Callable[[], torch.nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]


def _randn(*shapes, dtype=FP32):
    return lambda: tuple(torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(dtype) for shape in shapes)


def _classes():
    return (*_randn((6, 32))(), torch.tensor([3, 0, 9, 2, 7, 7]))


MODULES: tuple[Module, ...] = (
    Module("CrossEntropyLoss", lambda: kernels.nn.CrossEntropyLoss(), _classes),
    Module("Dropout", lambda: kernels.nn.Dropout(0.5), _randn((6, 40))),
    Module("Embedding", lambda: kernels.nn.Embedding(20, 24), lambda: (torch.tensor([3, 0, 19]),)),
    Module("GELU", lambda: kernels.nn.GELU(), _randn((6, 40))),
    Module("LayerNorm", lambda: kernels.nn.LayerNorm(40), _randn((6, 40))),
    Module("LayerNormLinear", lambda: kernels.nn.LayerNormLinear(40, 24), _randn((6, 40))),
    Module("Linear", lambda: kernels.nn.Linear(32, 24, activation="gelu"), _randn((6, 32))),
    Module("LinearCrossEntropyLoss", lambda: kernels.nn.LinearCrossEntropyLoss(32, 50), _classes),
    Module("LinearW4", lambda: kernels.nn.LinearW4.of(torch.nn.Linear(64, 48, dtype=FP16), 32),
           _randn((6, 64), dtype=FP16)),
    Module("LinearW8", lambda: kernels.nn.LinearW8.of(torch.nn.Linear(64, 48, dtype=FP16)),
           _randn((6, 64), dtype=FP16)),
    Module("LogSoftmax", lambda: kernels.nn.LogSoftmax(-1), _randn((6, 40))),
    Module("RMSNorm", lambda: kernels.nn.RMSNorm(40), _randn((6, 40))),
    Module("RotaryEmbedding", lambda: kernels.nn.RotaryEmbedding(16, 5), _randn((2, 5, 2, 16))),
    Module("SelfAttention", lambda: kernels.nn.SelfAttention(64, 2), _randn((1, 12, 64))),
    Module("SiLU", lambda: kernels.nn.SiLU(), _randn((6, 40))),
    Module("Softmax", lambda: kernels.nn.Softmax(-1), _randn((6, 40))),
    Module("SwiGLU", lambda: kernels.nn.SwiGLU(), _randn((6, 40), (6, 40))),
)  # fmt: skip
