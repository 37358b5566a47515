"""Attention to few keys for many heads: a program takes several tiles, whose queries come under the tile before."""

import pytest
import torch

from kernels import attention_with_lse

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("heads_k", "queries", "keys", "d", "e", "causal"),
    [
        (40, 256, 256, 96, 64, True),
        (40, 300, 300, 64, 128, True),
        (8, 200, 333, 128, 128, False),
        (10, 140, 500, 80, 80, True),
        (40, 100, 100, 64, 128, True),  # all keys in one block, V wider than K
    ],
)
def test_many_tiles_of_a_program_are_right_and_repeat_bit_by_bit(cuda, heads_k, queries, keys, d, e, causal):
    generator = torch.Generator(cuda).manual_seed(d + e)
    sizes = (40, queries, d), (heads_k, keys, d), (heads_k, keys, e)
    q, k, v = (torch.randn(12, *s, device=cuda, dtype=torch.bfloat16, generator=generator) for s in sizes)
    out, lse = attention_with_lse(q, k, v, is_causal=causal, enable_gqa=heads_k != 40)
    for _ in range(20):
        again = attention_with_lse(q, k, v, is_causal=causal, enable_gqa=heads_k != 40)
        assert torch.equal(again[0], out) and torch.equal(again[1], lse)
    k, v = (x.double().repeat_interleave(40 // heads_k, 1) for x in (k, v))
    s = q.double() @ k.mT * d**-0.5
    if causal:
        s = s.masked_fill(~torch.ones(queries, keys, dtype=torch.bool, device=cuda).tril(), -torch.inf)
    torch.testing.assert_close(lse.double(), s.logsumexp(-1), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(out.double(), s.softmax(-1) @ v, rtol=2e-2, atol=2e-2)
