"""Attention of 8-bit heads: out = softmax(scale Q K^T) V with Q, K, V of fp8 (e4m3), and a scale for each head.

The algorithm is that of :mod:`kernels.attention`, forward alone.  With Q [b, h, l, d], K and V [b, g, s, d] of e4m3,
which stand for q_scale Q, k_scale K and v_scale V (q_scale [b, h], k_scale and v_scale [b, g], fp32),

    S = scale q_scale k_scale Q K^T,    lse_i = log sum_j exp S_ij,    out = v_scale softmax(S) V

Tensor cores multiply e4m3 twice as fast as bf16, and K and V are half as many bytes.  Rounded on the way is P: as
256 exp(S - m), between 0 and 256, to e4m3, with a relative error of up to 2^-4, and below 2^-14 of a row's largest
number to multiples of 2^-17 of that.  out is divided by the sum of P as it was before.  S, sums and lse are fp32.

So out has two errors: that of whoever quantised Q, K and V, which is not this kernel's, and that of P.  The second
averages out over the keys that a query looks at: against exact attention to the same e4m3 numbers it is 1.4 to 1.9 % of
out's root mean square (H200, normal numbers).

Takes 4 b h l s d operations, half of them under a causal mask, and as many exponentials as bf16 does: those, not the
products, are the bound for heads of 64.
"""

import math

import torch
from atlas.operators import Operator

from kernels.attention.cases import LARGEST_HEAD, case_of

from .cases import E4M3
from .declaration import DECLARATION

__all__ = ["attention_fp8", "quantise_heads"]
_OUT = frozenset({torch.bfloat16, torch.float16, torch.float32})


def _case_of(q, k, v, q_scale, k_scale, v_scale, causal, scale, out_dtype):
    return case_of(q, k, causal)


def _run(launch, q, k, v, q_scale, k_scale, v_scale, causal, scale, out_dtype):
    return launch(q, k, v, (q_scale, k_scale, v_scale), causal, scale, out_dtype)


def _fake(q, k, v, q_scale, k_scale, v_scale, causal, scale, out_dtype):
    return torch.empty_like(q, dtype=out_dtype), q.new_empty(q.shape[:3], dtype=torch.float32)


attention_operator = Operator(
    DECLARATION,
    "forward",
    "(Tensor q, Tensor k, Tensor v, Tensor q_scale, Tensor k_scale, Tensor v_scale, bool causal, float scale, "
    "ScalarType out_dtype) -> (Tensor, Tensor)",
    case_of=_case_of,
    run=_run,
    fake=_fake,
    name="attention_fp8",
)


def quantise_heads(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``(values, scale)`` with x ~ values * scale[..., None, None]: heads of x [b, h, l, d] in e4m3, a scale for each.

    A head's scale is its largest magnitude over 448, fp32 [b, h], and 1 for a head of zeros.  Values are rounded to the
    nearest: a relative error of up to 2^-4.  NaN and infinities make their head NaN.  Plain torch: ``torch.compile``
    makes one kernel of it.

    Raises TypeError for other than floating numbers, ValueError for other than four dimensions.
    """
    if not x.is_floating_point():
        raise TypeError(f"quantise_heads takes floating numbers: {x.dtype}")
    if x.dim() != 4:
        raise ValueError(f"quantise_heads takes (batch, heads, length, head_dim): {tuple(x.shape)}")
    x = x.float()
    largest = torch.finfo(E4M3).max
    most = x.abs().amax(dim=(2, 3), keepdim=True) if x.numel() else x.new_zeros((*x.shape[:2], 1, 1))
    scale = torch.where(most == 0, 1.0, most / largest)
    return (x / scale).clamp(-largest, largest).to(E4M3), scale[:, :, 0, 0]


@DECLARATION.public
def attention_fp8(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_scale: torch.Tensor,
    key_scale: torch.Tensor,
    value_scale: torch.Tensor,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    out_dtype: torch.dtype = torch.bfloat16,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, lse) of ``scaled_dot_product_attention`` of float8_e4m3fn, as :func:`quantise_heads` makes it of others.

    query is [batch, heads, length, head_dim], key and value [batch, heads, length of its own, head_dim], with
    ``enable_gqa`` of fewer heads, which then serve groups of neighbouring heads of query.  Each stands for itself times
    its scale: fp32, positive and finite, of one element, or one for each batch and head.  output is ``out_dtype``
    (bf16, fp16 or fp32), lse [batch, heads, length] fp32: the natural logarithm of the sum of exp(score) over the keys
    that a query sees.  ``is_causal`` lets query i see the keys 0 … i, also where the lengths differ.

    P is rounded to e4m3 too: see the module.  head_dim is at most 256.  Strides may be any; rows that do not begin at
    16 bytes, and heads of other than 64, 128 or 256, are slower on Hopper.  Has no gradient.

    Raises TypeError for other dtypes, ValueError for shapes, scales or devices that do not agree, NotImplementedError
    for larger heads, where a gradient is asked for, and for a GPU without tensor cores for fp8.
    """
    _check(query, key, value, enable_gqa)
    if out_dtype not in _OUT:
        raise TypeError(f"attention_fp8 returns bf16, fp16 or fp32, not {out_dtype}")
    scales = [
        _checked_scale(name, x, factor)
        for name, x, factor in (
            ("query", query, query_scale), ("key", key, key_scale), ("value", value, value_scale)
        )
    ]  # fmt: skip
    if not query.shape[-1]:  # heads of no elements: all scores are 0, as those of one that is 0
        wide = (x.new_zeros((*x.shape[:3], 1)) for x in (query, key, value))
        out, lse = attention_fp8(*wide, *scales, is_causal, 1.0, enable_gqa, out_dtype)
        return out[..., :0], lse
    if scale is None:
        scale = query.shape[-1] ** -0.5
    if not 0 < scale < math.inf:
        raise ValueError(f"attention_fp8 takes a positive and finite scale, not {scale}")
    if not (query.numel() and key.numel()):
        lse = torch.full(query.shape[:3], -math.inf, dtype=torch.float32, device=query.device)
        return torch.zeros(query.shape, dtype=out_dtype, device=query.device), lse
    query, key, value = (x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous() for x in (query, key, value))
    return attention_operator(query, key, value, *scales, is_causal, float(scale), out_dtype)


def _check(query, key, value, grouped):
    """Raise for what the kernels do not take."""
    if {query.dtype, key.dtype, value.dtype} != {E4M3}:
        raise TypeError(f"attention_fp8 takes tensors of {E4M3}: {query.dtype}, {key.dtype}, {value.dtype}")
    if {query.device, key.device, value.device} != {query.device}:
        raise ValueError(f"attention_fp8 takes tensors of one device: {query.device}, {key.device}, {value.device}")
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if not query.dim() == key.dim() == value.dim() == 4 or key.shape != value.shape:
        raise ValueError(f"attention_fp8 takes (batch, heads, length, head_dim), of key and value alike: {shapes}")
    if query.shape[0] != key.shape[0] or query.shape[-1] != key.shape[-1]:
        raise ValueError(f"attention_fp8: shapes do not agree: {shapes}")
    if query.shape[-1] > LARGEST_HEAD:
        raise NotImplementedError(f"attention_fp8 takes heads of up to {LARGEST_HEAD}: {shapes}")
    heads, heads_k = query.shape[1], key.shape[1]
    if heads != heads_k and not (grouped and heads_k and heads % heads_k == 0):
        raise ValueError(
            f"attention_fp8 takes as many heads of key and value as of query, or with enable_gqa=True a number that "
            f"divides them: {shapes}"
        )


def _checked_scale(name, x, scale):
    """A scale as kernels read it, contiguous [batch, heads]."""
    if scale.dtype != torch.float32 or scale.device != x.device or (scale.numel() != 1 and scale.shape != x.shape[:2]):
        raise ValueError(
            f"attention_fp8 takes {name}_scale as fp32 on {x.device}, of one element or {tuple(x.shape[:2])}: "
            f"{scale.dtype} on {scale.device}, {tuple(scale.shape)}"
        )
    if torch.is_grad_enabled() and scale.requires_grad:
        raise NotImplementedError("attention_fp8 has no gradient: detach its scales")
    return (scale.reshape(1, 1).expand(x.shape[:2]) if scale.numel() == 1 else scale).contiguous()
