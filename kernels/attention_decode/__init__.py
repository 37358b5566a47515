"""Attention of one new token against a long cache of keys and values, for many sequences at once (decoding).

With q [b, h, t, d] (t = 1, or a few tokens that are tried at once) and caches K, V [b, g, s, d] of which sequence b has
filled the first n_b rows, its new tokens included, head i of q uses head i // (h / g) of K and V, and

    S_tj = scale q_t K_j^T  for j <= n_b - t + (number of the token, from 0),
    lse_t = log sum_j exp S_tj,    out_t = sum_j exp(S_tj - lse_t) V_j

Reads K and V once, 2 n_b d elements a sequence and head, and little else; 4 t operations for each element and head of q
that shares it.  So memory is the bound, and the task is to have enough of the cache under way in every SM:

- All h / g heads of q that share a head of the cache, and their t tokens, are rows of one product: a program reads its
  part of the cache once for all of them.  Tensor cores take 16 rows at least; those that are missing cost nothing here.
- A sequence's cache is split in chunks of equal length, one a program, so that one sequence fills the GPU, too; long
  caches of many sequences are cut into equal parts, wherever one ends.  A program keeps maximum, sum and weighted sum
  of V as in flash attention; a second kernel weighs the parts' results by their log-sum-exp, in their order.  Two runs
  agree bit by bit.
"""

import math

import torch
from atlas.declaration import case
from atlas.operators import Operator, autocast, autocasting

from .declaration import DECLARATION

__all__ = ["decode_attention"]
_MOST_ROWS = 64


def _case_of(q, k, lens):
    return case(
        DECLARATION.dtype_of(q), batch=q.shape[0], heads=q.shape[1], kv_heads=k.shape[1], seq=k.shape[2],
        queries=q.shape[2], head_dim=q.shape[3], ragged=lens is not None,
    )  # fmt: skip


def _fake(q, k, v, lens, scale):
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


decode_operator = Operator(
    DECLARATION,
    "forward",
    "(Tensor q, Tensor k, Tensor v, Tensor? lens, float scale) -> (Tensor, Tensor)",
    case_of=lambda q, k, v, lens, scale: _case_of(q, k, lens),
    fake=_fake,
    name="decode_attention",
)


@DECLARATION.public
def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_lens: torch.Tensor | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of the newest tokens ``q`` [b, h, t, d] to caches [b, g, s, d]; out [b, h, t, d].

    fp16 or bf16; h is a multiple of g, and (h / g) t at most 64.  ``cache_lens`` [b], int32, says how many rows of its
    cache each sequence has filled, the t new tokens included; without it all s.  Token i of t sees all rows but the
    last t - 1 - i, as ``is_causal`` aligned to the lower right; one that sees none has the result 0.  ``scale`` is
    1 / sqrt(d) if not given, and ``return_lse`` gives the log-sum-exp of the scores [b, h, t], fp32, too.  A cache may
    have any strides but in d, so [b, s, g, d] goes in transposed.  ``cache_lens`` is not read by the host: entries
    beyond s count as s.

    There is no gradient.  Raises TypeError for dtypes, ValueError for shapes, devices and strides.
    """
    if autocasting():
        q, k_cache, v_cache = autocast("scaled_dot_product_attention", q, k_cache, v_cache)
    _check(q, k_cache, v_cache, cache_lens)
    if q.stride(3) != 1:
        q = q.contiguous()
    if q.requires_grad or k_cache.requires_grad or v_cache.requires_grad:
        q, k_cache, v_cache = q.detach(), k_cache.detach(), v_cache.detach()
    if not q.shape[-1]:  # heads of no elements: all scores are 0, as those of one that is 0
        wide = (torch.nn.functional.pad(x, (0, 1)) for x in (q, k_cache, v_cache))
        out, lse = decode_attention(*wide, cache_lens, 1.0, return_lse=True)
        return (out[..., :0], lse) if return_lse else out[..., :0]
    if scale is None:
        scale = q.shape[-1] ** -0.5
    elif not -math.inf < scale < math.inf:
        q, scale = q * scale, 1.0  # scores are what the product of the two is
    if not q.numel():
        out, lse = _fake(q, k_cache, v_cache, cache_lens, scale)
    else:
        out, lse = decode_operator(q, k_cache, v_cache, cache_lens, float(scale))
    return (out, lse) if return_lse else out


def _check(q, k, v, lens):
    DECLARATION.dtype_of(q, k, v)
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(f"decode_attention takes q [b, h, t, d] and caches [b, g, s, d] of one b and d: {shapes}")
    (_, heads, queries, head_dim), kv_heads = q.shape, k.shape[1]
    if q.numel() and (not kv_heads or heads % kv_heads):
        raise ValueError(f"decode_attention takes a multiple of the cache's heads in q: {heads} and {kv_heads}")
    if q.numel() and heads // kv_heads * queries > _MOST_ROWS:
        raise ValueError(
            f"decode_attention takes up to {_MOST_ROWS} tokens times heads of q that share a head of the cache: "
            f"{heads // kv_heads * queries}; longer ones are for scaled_dot_product_attention"
        )
    if head_dim > 256:
        raise ValueError(f"decode_attention takes heads of up to 256 dimensions: {head_dim}")
    if k.stride(3) != 1 or v.stride(3) != 1:
        raise ValueError("decode_attention takes caches whose last dimension is contiguous, since it copies none")
    if k.device != q.device or v.device != q.device or (lens is not None and lens.device != q.device):
        raise ValueError("decode_attention takes tensors of one device")
    if lens is not None and (lens.dtype is not torch.int32 or lens.shape != q.shape[:1] or not lens.is_contiguous()):
        raise ValueError(f"decode_attention takes cache_lens int32 [{q.shape[0]}]: {lens.dtype} {tuple(lens.shape)}")
