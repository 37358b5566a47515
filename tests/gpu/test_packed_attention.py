"""Packed sequences on a GPU: lengths in every relation to blocks, neighbours that are not numbers, equal bits."""

import math

import pytest
import torch

from kernels import attention_varlen

pytestmark = pytest.mark.gpu

BATCHES = {
    "few": ([5, 0, 300, 64, 129, 1, 1000], [5, 3, 300, 64, 129, 0, 1000]),
    "more keys, or fewer": ([70, 400, 130, 9], [200, 300, 130, 1]),
    "many": ([1 + 37 * i % 150 for i in range(200)], [1 + 53 * i % 170 for i in range(200)]),
}


def drawn(cuda, queries, keys, heads, heads_k, head_dim):
    generator = torch.Generator(cuda).manual_seed(head_dim)
    shapes = (sum(queries), heads), (sum(keys), heads_k), (sum(keys), heads_k)
    tensors = [torch.randn(*s, head_dim, device=cuda, dtype=torch.bfloat16, generator=generator) for s in shapes]
    ends = [torch.tensor([0, *lengths], device=cuda).cumsum(0).int() for lengths in (queries, keys)]
    return [x.requires_grad_() for x in tensors], ends


def alone(q, k, v, causal):
    """(out, lse) of one sequence in float64 by the formula; 0 and -inf for a query that sees no key."""
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], dim=0) for x in (k, v))
    none = max(0, q.shape[1] - k.shape[1]) if causal else 0 if k.shape[1] else q.shape[1]
    s = q[:, none:] @ k.transpose(1, 2) * q.shape[2] ** -0.5
    if causal:
        seen = torch.ones(s.shape[1:], dtype=torch.bool, device=s.device).tril(s.shape[2] - s.shape[1])
        s = s.masked_fill(~seen, -math.inf)
    nothing = q.new_zeros(q.shape[0], none, q.shape[2])
    lse = torch.cat([q.new_full((q.shape[0], none), -math.inf), s.logsumexp(-1)], dim=1)
    return torch.cat([nothing, torch.softmax(s, dim=-1) @ v], dim=1), lse


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("heads", "heads_k", "head_dim"), [(4, 2, 128), (2, 2, 64), (2, 1, 80), (2, 1, 256), (2, 2, 32)]
)
def test_sequences_are_as_each_alone(cuda, heads, heads_k, head_dim, causal, batch):
    queries, keys = BATCHES[batch]
    leaves, ends = drawn(cuda, queries, keys, heads, heads_k, head_dim)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    split = (x.split(n) for x, n in zip(exact, (queries, keys, keys), strict=True))
    parts = [alone(*x, causal) for x in zip(*split, strict=True)]
    expected, expected_lse = (torch.cat(column, dim=1) for column in zip(*parts, strict=True))
    out, lse = attention_varlen(*leaves, *ends, max(queries), max(keys), causal)
    dout = torch.randn_like(out)
    found = torch.autograd.grad(out, leaves, dout)
    reference = torch.autograd.grad(expected.transpose(0, 1), exact, dout.double())
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-3, atol=1e-3)
    for one, other in zip((out, *found), (expected.transpose(0, 1), *reference), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-2, atol=2e-2 * other.abs().max().item())


@pytest.mark.parametrize("head_dim", [64, 128])
def test_what_lies_beside_a_sequence_is_not_its_own(cuda, head_dim):
    queries = keys = [100, 30, 300]
    (q, k, v), ends = drawn(cuda, queries, keys, 2, 2, head_dim)
    q, k, v = (x.detach() for x in (q, k, v))
    known = attention_varlen(q, k, v, *ends, 300, 300, True)
    again = attention_varlen(q, k, v, *ends, 300, 300, True)
    assert all(torch.equal(one, other) for one, other in zip(known, again, strict=True))
    q[100:130], k[100:130], v[100:130] = math.nan, math.nan, math.inf
    out, lse = attention_varlen(q, k, v, *ends, 300, 300, True)
    assert out[100:130].isnan().all()
    kept = [i for i in range(430) if not 100 <= i < 130]
    assert torch.equal(out[kept], known[0][kept]) and torch.equal(lse[:, kept], known[1][:, kept])
