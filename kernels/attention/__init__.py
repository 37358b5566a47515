"""Attention: out = softmax(scale Q K^T) V for each head, without the matrix of scores in memory (flash attention).

With Q [b, h, l, d] and K, V [b, g, s, d] (head i of Q uses head i // (h / g) of K and V),

    S = scale Q K^T,    lse_i = log sum_j exp S_ij,    P_ij = exp(S_ij - lse_i),    out = P V

and with a causal mask S_ij = -inf where j > i.  A program owns a block of queries and goes through blocks of keys; of
each row it keeps the maximum m_i so far, the sum l_i of exp(S - m_i), and the sum of exp(S - m_i) V, and multiplies
both sums by exp(m_i - m_new) when the maximum grows.  Exponentials are exp2, log2(e) lies in the scale.

Backward computes P again from lse: with D_i = sum_d dout_id out_id (less the gradient of lse_i, where there is one),

    dV = P^T dout,    dS = P * (dout V^T - D),    dQ = scale dS K,    dK = scale dS^T Q

Forward takes 4 b h l s d operations, half of them under a causal mask; backward 2.5 times as many if each product is
computed once, as on Hopper up to heads of 128 (:mod:`.hopper_backward`), and 3.5 times elsewhere, where a kernel for
dK and dV and one for dQ both compute S and dout V^T: all sums are in registers and in a fixed order.  Q, K, V, out and
the gradients go through memory about once, so from some hundred tokens on tensor cores are the bound, and beside them
the exponentials, one for every 4 d operations.
"""

import math

import torch
from atlas.operators import autocast, autocasting

from .cases import LARGEST_HEAD
from .declaration import DECLARATION
from .operators import attention_operator, rows_contiguous, varlen_operator

__all__ = ["attention_varlen", "attention_with_lse", "scaled_dot_product_attention"]


def attention_with_lse(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, lse) of :func:`scaled_dot_product_attention`: lse [batch, heads, length] is each query's log-sum-exp.

    lse is fp32, the natural logarithm of the sum of exp(scale query @ key) over the keys that a query sees, -inf where
    it sees none.  Both outputs have gradients, so results on parts of the keys can be merged.
    """
    if query.dim() == key.dim() == 4 and (enable_gqa or query.shape[1] == key.shape[1]) and not autocasting():
        found = attention_operator.again(
            query, key, value, is_causal, (query.shape[-1] or 1) ** -0.5 if scale is None else scale
        )
        if found is not None:
            return found
    layout = "(batch, heads, length, head_dim)"
    query, key, value = _checked("attention", query, key, value, 4, layout, 1, enable_gqa)
    if query.shape[0] != key.shape[0]:
        raise ValueError(f"attention takes one batch for all: {tuple(query.shape)}, {tuple(key.shape)}")
    if not query.shape[-1]:
        out, lse = attention_with_lse(*_one_wide(query, key, value), is_causal, 1.0, enable_gqa)
        return out[..., :0], lse
    query, scale = _scaled(query, scale)
    if not (query.numel() and key.numel()):
        return _empty(query, key, value, query.shape[:3])
    return attention_operator(query, key, value, is_causal, scale)


@DECLARATION.public
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` of query [batch, heads, length, head_dim].

    ``is_causal`` lets query i see the keys 0 … i, as torch's does also where the lengths differ.  key and value are
    [batch, heads, length of its own, head_dim], with ``enable_gqa`` of fewer heads, which then serve groups of
    neighbouring heads of query.  head_dim is at most 256, dtypes are fp32 (multiplied in IEEE precision), fp16 and
    bf16; softmax and sums are fp32.  Strides may be any as long as the elements of a head lie side by side, else the
    tensor is copied.  Gradients are the same at every run.  There are no second derivatives.

    Raises NotImplementedError for ``attn_mask``, ``dropout_p``, other numbers of dimensions, larger heads, and heads of
    value of another size; TypeError for other dtypes, ValueError for shapes that do not agree.
    """
    if attn_mask is not None:
        raise NotImplementedError(
            "attn_mask is not supported: use is_causal, attention_varlen for sequences of different lengths, or "
            "torch's scaled_dot_product_attention or flex_attention"
        )
    if dropout_p:
        raise NotImplementedError(
            f"dropout_p={dropout_p} is not supported: use torch's scaled_dot_product_attention, or 0.0 and dropout of "
            "the output (kernels.dropout)"
        )
    return attention_with_lse(query, key, value, is_causal, scale, enable_gqa)[0]


def attention_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, lse) of sequences of different lengths that lie behind one another, as in flash attention's varlen.

    query is [all queries, heads, head_dim], key and value [all keys, heads that divide those of query, head_dim].
    Sequence i has the rows cu_seqlens[i] … cu_seqlens[i + 1] - 1; both are int32 on the tensors' device, from 0 to all
    rows, and are not looked at by the host, nor is it checked that ``max_q`` and ``max_k`` are the longest lengths:
    queries past ``max_q`` of a sequence are not written.  lse is [heads, all queries].

    ``is_causal`` lets a sequence's last query see its last key (bottom right), unlike scaled_dot_product_attention: the
    queries are the end of what the keys are.  A query that sees no key gets 0, and an lse of -inf.
    """
    layout = "(rows, heads, head_dim)"
    query, key, value = _checked("attention_varlen", query, key, value, 3, layout, 1, True)
    for cu_seqlens in (cu_seqlens_q, cu_seqlens_k):
        if cu_seqlens.dtype is not torch.int32 or cu_seqlens.dim() != 1 or cu_seqlens.device != query.device:
            raise TypeError(
                f"attention_varlen takes cumulative lengths as int32 vectors on {query.device}: {cu_seqlens.dtype} "
                f"{tuple(cu_seqlens.shape)} on {cu_seqlens.device}"
            )
    if cu_seqlens_q.shape != cu_seqlens_k.shape or not cu_seqlens_q.numel():
        raise ValueError(
            f"attention_varlen takes one more cumulative length than sequences, of queries as of keys: "
            f"{cu_seqlens_q.numel()}, {cu_seqlens_k.numel()}"
        )
    if not query.shape[-1]:
        wide = _one_wide(query, key, value)
        out, lse = attention_varlen(*wide, cu_seqlens_q, cu_seqlens_k, max_q, max_k, is_causal, 1.0)
        return out[..., :0], lse
    query, scale = _scaled(query, scale)
    if not (query.numel() and key.numel() and max_q > 0 and max_k > 0 and cu_seqlens_q.numel() > 1):
        return _empty(query, key, value, (query.shape[1], query.shape[0]))
    cu_seqlens_q, cu_seqlens_k = cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous()
    return varlen_operator(query, key, value, cu_seqlens_q, cu_seqlens_k, max_q, max_k, is_causal, scale)


def _checked(name, query, key, value, dims, layout, heads_at, grouped):
    """The three tensors as kernels take them; raises for what is not supported."""
    if autocasting():
        query, key, value = autocast("scaled_dot_product_attention", query, key, value)
    DECLARATION.dtype_of(query, key, value, function=name)
    if not query.dim() == key.dim() == value.dim() == dims:
        raise NotImplementedError(
            f"{name} takes tensors of {dims} dimensions, {layout}: {tuple(query.shape)}, {tuple(key.shape)}, "
            f"{tuple(value.shape)}; reshape them, or use torch"
        )
    if query.device != key.device or query.device != value.device:
        raise ValueError(f"{name} takes tensors of one device: {query.device}, {key.device}, {value.device}")
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if query.shape[-1] != key.shape[-1] or key.shape[:-1] != value.shape[:-1]:
        raise ValueError(f"{name}: shapes do not agree: {shapes}")
    if value.shape[-1] != key.shape[-1] or query.shape[-1] > LARGEST_HEAD:
        raise NotImplementedError(
            f"{name} takes heads of one size up to {LARGEST_HEAD} for query, key and value: {shapes}; use torch, or "
            "pad the smaller one with zeros"
        )
    heads, heads_k = query.shape[heads_at], key.shape[heads_at]
    if heads != heads_k and not (grouped and heads_k and heads % heads_k == 0):
        raise ValueError(
            f"{name} takes as many heads of key and value as of query, or with enable_gqa=True a number that divides "
            f"them: {shapes}"
        )
    return rows_contiguous(query), rows_contiguous(key), rows_contiguous(value)


def _scaled(query, scale):
    """(query, scale > 0) of the same scores: rows' maxima are taken before scores are scaled."""
    if scale is None:
        scale = query.shape[-1] ** -0.5
    if 0 < scale < math.inf:
        return query, scale
    if -math.inf < scale < 0:
        return -query, -scale
    return query * scale, 1.0  # 0, infinite, or NaN: scores are what the product of the two is


def _one_wide(*heads):
    """Heads of no elements as such of one, 0: their scores are all 0, and kernels take them."""
    return (torch.nn.functional.pad(x, (0, 1)) for x in heads)


def _empty(query, key, value, rows):
    """Attention to nothing, or of nothing: 0 and -inf, with gradients of 0, whatever the inputs hold."""
    never = torch.zeros((), dtype=torch.bool, device=query.device)
    out = torch.where(never, query, 0.0) + torch.where(never, key.sum() + value.sum(), 0.0)
    return out, torch.full(rows, -math.inf, dtype=torch.float32, device=query.device)
