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

import torch
from atlas.operators import autocasting

from .arguments import (
    as_given,
    batched,
    checked,
    empty,
    in_four,
    in_one_batch,
    narrowed,
    one_size,
    one_wide,
    scale_of,
    scaled,
    window_of,
)
from .declaration import DECLARATION
from .operators import attention_operator, varlen_operator

# kernels.attention_masked is made of parts of this family, so functions import it; and by names, for at
# ``import kernels.attention_masked`` torch.compile before 2.13 breaks its graph: that gives ``kernels``, a module of a
# class of its own.

__all__ = ["attention_varlen", "attention_with_lse", "scaled_dot_product_attention"]


def attention_with_lse(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: tuple[int | None, int | None] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, lse) of :func:`scaled_dot_product_attention`: lse [batch, heads, length] is each query's log-sum-exp.

    lse is fp32, the natural logarithm of the sum of exp(scale query @ key) over the keys that a query sees, -inf where
    it sees none.  Both outputs have gradients, so results on parts of the keys can be merged.  Under a mask
    :func:`kernels.masked_attention` gives both.
    """
    plain = window is None and query.dim() == key.dim() == 4 and not autocasting()
    if plain and (enable_gqa or query.shape[1] == key.shape[1]):
        found = attention_operator.again(query, key, value, is_causal, scale_of(query, scale))
        if found is not None:
            return found
    if not in_one_batch(query, key, value):
        *heads, leading = in_four("attention", query, key, value)
        out, lse = attention_with_lse(*heads, is_causal, scale, enable_gqa, window=window)
        return as_given(leading, out, lse)
    if window is not None:
        left, right = window_of("attention", window, is_causal, query.shape[2], key.shape[2])
        if left or right > 1:
            from kernels.attention_masked import attend

            return attend(*batched("attention", query, key, value, enable_gqa), None, scale, left, right)
        is_causal = right == 1
    if query.shape[-1] != value.shape[-1]:
        from kernels.attention_mla import attended

        return attended(query, key, value, is_causal, scale, enable_gqa)
    query, key, value = batched("attention", query, key, value, enable_gqa)
    if not query.shape[-1]:
        out, lse = attention_with_lse(*one_wide(query, key, value), is_causal, 1.0, enable_gqa)
        return narrowed(out, 0), lse
    query, scale = scaled(query, scale)
    if not (query.numel() and key.numel()):
        return empty(query, key, value, query.shape[:3])
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
    *,
    window: tuple[int | None, int | None] | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` of query [batch, heads, length, head_dim].

    ``is_causal`` lets query i see the keys 0 … i, as torch's does also where the lengths differ.  key and value are
    [batch, heads, length of its own, head_dim], of one head for all or, with ``enable_gqa``, of fewer, which then serve
    groups of neighbouring heads of query; value's may have another head_dim, which output's then have
    (:mod:`kernels.attention_mla`).  Several dimensions of batch are broadcast; batch, or batch and heads, may be
    missing.  head_dim is at most 256, dtypes are fp32 (multiplied in IEEE precision), fp16 and bf16; softmax and sums
    are fp32.  Strides may be any as long as the elements of a head lie side by side, else the tensor is copied.
    Gradients are the same at every run.  There are no second derivatives.

    ``attn_mask`` and ``window`` are those of :func:`kernels.masked_attention`: bools or numbers to add, and how many
    keys a query sees before and after its own, which torch's function has not.

    Raises NotImplementedError for ``dropout_p`` and larger heads; TypeError for other dtypes, ValueError for shapes
    that do not agree, and for ``attn_mask`` together with ``is_causal``, which exclude each other in torch.
    """
    if dropout_p:
        raise NotImplementedError(
            f"dropout_p={dropout_p} is not supported: use torch's scaled_dot_product_attention, or 0.0 and dropout of "
            "the output (kernels.dropout)"
        )
    if attn_mask is None:
        return attention_with_lse(query, key, value, is_causal, scale, enable_gqa, window=window)[0]
    if is_causal:
        raise ValueError(
            "scaled_dot_product_attention takes attn_mask or is_causal, as torch's: name both as window=(None, 0) with "
            "attn_mask"
        )
    from kernels.attention_masked import attended

    return attended(query, key, value, attn_mask, window, scale, enable_gqa)[0]


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
    *,
    window: tuple[int | None, int | None] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, lse) of sequences of different lengths that lie behind one another, as in flash attention's varlen.

    query is [all queries, heads, head_dim], key and value [all keys, heads that divide those of query, head_dim].
    Sequence i has the rows cu_seqlens[i] … cu_seqlens[i + 1] - 1; both are int32 on the tensors' device, from 0 to all
    rows, and are not looked at by the host, nor is it checked that ``max_q`` and ``max_k`` are the longest lengths:
    queries past ``max_q`` of a sequence are not written, keys past ``max_k`` not always seen.  lse is [heads, all
    queries].

    ``is_causal`` lets a sequence's last query see its last key (bottom right), unlike scaled_dot_product_attention: the
    queries are the end of what the keys are.  So is a ``window`` aligned, of (keys before, keys after) a query's own,
    None or -1 for all.  A query that sees no key gets 0, and an lse of -inf.
    """
    layout = "(rows, heads, head_dim)"
    query, key, value = checked("attention_varlen", query, key, value, 3, layout, 1, True)
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
    if query.shape[-1] != value.shape[-1]:
        alike, scale = one_size(query, key, value), scale_of(query, scale)
        out, lse = attention_varlen(
            *alike, cu_seqlens_q, cu_seqlens_k, max_q, max_k, is_causal, scale, window=window
        )  # fmt: skip
        return narrowed(out, value.shape[-1]), lse
    if not query.shape[-1]:
        wide = one_wide(query, key, value)
        out, lse = attention_varlen(*wide, cu_seqlens_q, cu_seqlens_k, max_q, max_k, is_causal, 1.0, window=window)
        return narrowed(out, 0), lse
    query, scale = scaled(query, scale)
    if not (query.numel() and key.numel() and max_q > 0 and max_k > 0 and cu_seqlens_q.numel() > 1):
        return empty(query, key, value, (query.shape[1], query.shape[0]))
    packed = query, key, value, cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous(), int(max_q), int(max_k)
    if window is not None:
        left, right = window_of("attention_varlen", window, is_causal, max_k, max_q)
        if left or right > 1:
            from kernels.attention_masked.operators import window_varlen_operator

            return window_varlen_operator(*packed, scale, left, right)
        is_causal = right == 1
    return varlen_operator(*packed, is_causal, scale)
