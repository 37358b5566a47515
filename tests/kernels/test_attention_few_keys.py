"""Gradients of attention to few keys: one kernel's sums, how queries are dealt out, which kernel takes which sizes."""

import math

import pytest
import torch
from atlas.declaration import GPU

from kernels.attention import few_keys, hopper_gradients
from kernels.attention.cases import sized
from kernels.attention.hopper_few_keys_backward import sooner_by_tma
from kernels.attention.hopper_gradients import for_hopper_backward, handles_hopper_backward

H200 = GPU("h200", "cuda", 90, sms=132, shared_bytes=232448, memory_bytes=141 * 2**30, l2_bytes=60 * 2**20)


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(
    ("groups", "length", "s", "head_dim", "causal"),
    [(2, 40, 50, 64, False), (2, 70, 33, 40, True), (1, 64, 64, 16, True), (4, 70, 70, 24, True)],
)
@pytest.mark.parametrize(("descriptors", "parts"), [(False, 1), (True, 1), (True, 2), (True, 3)])
def test_gradients_of_few_keys_come_from_one_kernel(
    monkeypatch, groups, length, s, head_dim, causal, descriptors, parts
):
    """Whole blocks and tails, more keys than queries under a mask, heads that share keys, a gradient of lse.

    And the same where queries are dealt out to two programs or three, of which the last has what is left.
    """
    steps = groups * -(-length // few_keys.ROWS)
    if steps < parts:
        pytest.skip("fewer blocks of queries")
    monkeypatch.setattr(few_keys, "dealt_out", lambda q, k, num_warps: (parts, -(-steps // parts)))
    shapes = ((2, 4, length, head_dim), *[(2, 4 // groups, s, head_dim)] * 2)
    tensors = [randn(*shape, dtype=torch.float16, seed=i) for i, shape in enumerate(shapes)]
    exact = [x.double().requires_grad_() for x in tensors]
    scores = exact[0] @ exact[1].repeat_interleave(groups, dim=1).mT * 0.2
    if causal:
        scores = scores.masked_fill(~torch.ones(length, s, dtype=torch.bool).tril(), -math.inf)
    lse = scores.logsumexp(-1)
    out = torch.softmax(scores, dim=-1) @ exact[2].repeat_interleave(groups, dim=1)
    dout, dlse = randn(*out.shape, dtype=torch.float16, seed=3), randn(*lse.shape, seed=4)
    reference = torch.autograd.grad((out, lse), exact, (dout.double(), dlse.double()))
    saved = *tensors, out.detach().half(), lse.detach().float(), dout, dlse
    config = few_keys.few_keys_config(head_dim, s)
    found = few_keys.backward_few_keys(descriptors, *saved, causal, 0.2, config=config)
    for gradient, other in zip(found, reference, strict=True):
        torch.testing.assert_close(gradient.double(), other, rtol=1e-2, atol=1e-2)


def test_queries_of_few_keys_are_dealt_out_where_heads_are_few(monkeypatch):
    monkeypatch.setattr(few_keys, "gpu_of", lambda device: H200)

    def dealt(b, h, g, length, s, d, warps=8):
        q, k = torch.empty(b, h, length, d, device="meta"), torch.empty(b, g, s, d, device="meta")
        assert few_keys.backward_takes_few_keys(q, k) == (s <= 128 and d <= 128)
        return few_keys.dealt_out(q, k, warps)

    assert dealt(16, 16, 16, 4096, 77, 64) == (1, 64)  # 256 programs, all multiprocessors twice
    assert dealt(1, 4, 1, 32, 64, 128) == (4, 1)
    assert dealt(1, 4, 4, 128, 64, 128) == (1, 2)  # two blocks: sums would cost more
    assert dealt(8, 40, 8, 128, 128, 96) == (2, 5)  # half as many heads of K as multiprocessors
    assert dealt(1, 4, 4, 4096, 77, 64) == (32, 2)
    assert dealt(10, 28, 4, 75, 75, 96) == (3, 5)  # of 14 blocks, in one round
    assert dealt(10, 40, 8, 256, 77, 96) == (3, 7)
    assert dealt(2, 10, 10, 4096, 77, 64) == (6, 11)
    assert dealt(1, 1, 1, 2**20, 77, 64)[0] <= 132
    assert dealt(32, 32, 32, 129, 129, 64)[0] == dealt(32, 32, 32, 64, 64, 136)[0] == 1


@pytest.mark.parametrize(
    ("b", "h", "g", "length", "s", "d", "sooner"),
    [
        (8, 28, 4, 8192, 77, 64, True),
        (2, 10, 10, 1024, 77, 64, True),  # six programs a head, of three blocks
        (2, 8, 8, 768, 77, 32, False),  # of two, and one of its two groups begins late
        (16, 16, 16, 256, 64, 64, False),  # undivided heads of four: their sums would be of parts
        (32, 28, 4, 64, 64, 72, True),  # of seven
        (8, 32, 32, 2048, 64, 128, True),
        (8, 32, 32, 2048, 65, 128, False),  # sums of two halves of keys outgrow the registers
    ],
)
def test_few_keys_go_by_the_copy_engine_where_programs_have_blocks_of_queries_enough(
    monkeypatch, b, h, g, length, s, d, sooner
):
    monkeypatch.setattr(few_keys, "gpu_of", lambda device: H200)
    q, k = torch.empty(b, h, length, d, device="meta"), torch.empty(b, g, s, d, device="meta")
    assert sooner_by_tma(q, k) == sooner


@pytest.mark.parametrize(
    ("b", "h", "g", "length", "s", "d", "sooner"),
    [
        (30, 32, 32, 86, 86, 72, True),
        (16, 40, 8, 128, 128, 112, True),  # almost a round
        (30, 32, 32, 86, 86, 64, False),
        (30, 32, 32, 86, 64, 72, False),  # half a tile of keys
        (30, 32, 32, 64, 86, 72, False),  # of queries
        (30, 32, 32, 86, 129, 72, False),
        (30, 32, 32, 86, 86, 136, False),
        (8, 32, 8, 128, 128, 128, False),  # a head's queries are dealt out
        (4, 16, 16, 86, 86, 72, False),  # little to do for each multiprocessor
    ],
)
def test_few_keys_of_wide_heads_go_by_tiles_where_multiprocessors_have_heads_enough(
    monkeypatch, b, h, g, length, s, d, sooner
):
    for module in (few_keys, hopper_gradients):
        monkeypatch.setattr(module, "gpu_of", lambda device: H200)
    q, k = torch.empty(b, h, length, d, device="meta"), torch.empty(b, g, s, d, device="meta")
    assert hopper_gradients.whole_sooner(q, k) == sooner


def test_narrow_heads_of_few_keys_have_gradients_of_one_kernel():
    def reason(s, d, causal=False):
        return handles_hopper_backward(sized("bf16", "", causal, b=1, h=2, l=100, s=s, d=d), H200)

    assert not reason(77, 16) and not reason(128, 32) and not reason(129, 40) and not reason(77, 256)
    assert reason(129, 32) and reason(77, 8) and reason(77, 20) and reason(101, 32, True)
    assert for_hopper_backward(sized("bf16", "", b=1, h=2, l=100, s=77, d=32), H200)  # attention_mla's
