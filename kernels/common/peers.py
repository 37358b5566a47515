"""Peers that kernels have in common: cuBLASLt's product, and flex_attention."""

import torch
from atlas.declaration import max_autotune


def by_cublaslt(a, b):
    """A thunk of a b for a [m, k], b [k, n] by cuBLASLt, which torch takes where a vector is added: here zeros.

    It chooses among other kernels than torch's matmul, and is the faster of the two on some shapes.
    """
    if a.shape[0] == 1:
        raise NotImplementedError("torch's addmm leaves a product of one row to cuBLAS")
    zeros = torch.zeros(b.shape[1], dtype=a.dtype, device=a.device)
    return lambda: torch.addmm(zeros, a, b)


def by_flex_attention(q, k, v, causal, scale):
    """A thunk of attention by the fastest of flex_attention's kernels that torch.compile tries on the device."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def sees(batch, head, query, key):
        return query >= key

    mask = create_block_mask(sees, None, None, q.shape[2], k.shape[2], device=q.device) if causal else None
    shared = q.shape[1] != k.shape[1]
    return max_autotune(flex_attention, query=q, key=k, value=v, block_mask=mask, scale=scale, enable_gqa=shared)
