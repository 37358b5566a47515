"""Attention whose values have heads of another size, interpreted: every way to it, layouts, nothing to attend to."""

import pytest
import torch
from atlas.host import gpus
from atlas.reading.config import load_gpus
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.attention import attention_varlen, attention_with_lse
from kernels.attention import scaled_dot_product_attention as attention
from kernels.attention_masked import masked_attention
from kernels.attention_mla import latent_attention
from kernels.attention_mla.cases import of_one_size, sized
from kernels.attention_mla.declaration import DECLARATION
from kernels.attention_mla.hopper import handles_gradient

H200 = gpus.gpu("h200", load_gpus()["h200"])
SIZES = pytest.mark.parametrize(("d", "e"), [(48, 32), (16, 40), (7, 13)])


def qkv(d, e, b=2, h=4, g=2, length=20, s=24):
    generator = torch.Generator().manual_seed(d + e)
    shapes = (b, h, length, d), (b, g, s, d), (b, g, s, e)
    return tuple(torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes)


def by_torch(q, k, v, mask=None, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True, **options)


def agree(found, expected, inputs):
    """Values and all gradients."""
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    weights = torch.linspace(-1, 1, expected.numel()).view(expected.shape)
    gradients = (torch.autograd.grad((out * weights).sum(), inputs) for out in (found, expected))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@SIZES
@pytest.mark.parametrize("causal", [False, True])
def test_torchs_function_goes_there_by_itself(d, e, causal):
    inputs = qkv(d, e)
    found = attention(*inputs, is_causal=causal, enable_gqa=True)
    agree(found, by_torch(*inputs, is_causal=causal), inputs)


def test_log_sum_exps_have_gradients_too():
    q, k, v = qkv(48, 32)
    out, lse = attention_with_lse(q, k, v, scale=-0.3, enable_gqa=True)
    scores = -0.3 * q @ k.repeat_interleave(2, 1).transpose(-1, -2)
    torch.testing.assert_close(lse, scores.logsumexp(-1), rtol=1e-5, atol=1e-5)
    expected = torch.softmax(scores, -1) @ v.repeat_interleave(2, 1)
    agree(out * lse[..., None], expected * scores.logsumexp(-1)[..., None], (q, k, v))


@SIZES
def test_under_masks_and_in_windows_the_narrower_heads_are_filled_up(d, e):
    inputs = qkv(d, e)
    mask = (torch.arange(20)[:, None] + torch.arange(24)[None, :]) % 3 > 0
    agree(attention(*inputs, mask, enable_gqa=True), by_torch(*inputs, mask), inputs)
    ahead = torch.arange(24)[None, :] - torch.arange(20)[:, None]
    band = (ahead >= -3) & (ahead <= 2)
    agree(attention(*inputs, enable_gqa=True, window=(3, 2)), by_torch(*inputs, band), inputs)
    assert masked_attention(*inputs, enable_gqa=True)[0].shape == (2, 4, 20, e)


@SIZES
def test_packed_sequences_are_those_of_each_alone(d, e):
    q, k, v = (x[0].transpose(0, 1) for x in qkv(d, e, b=1, length=24))
    ends = torch.tensor([0, 9, 24], dtype=torch.int32)
    out, _ = attention_varlen(q, k, v, ends, ends, 15, 15, is_causal=True)
    for first, end in ((0, 9), (9, 24)):
        one = (x[first:end].transpose(0, 1)[None] for x in (q, k, v))
        torch.testing.assert_close(out[first:end], by_torch(*one, is_causal=True)[0].transpose(0, 1))


@pytest.mark.parametrize("heads_side_by_side", [False, True])
def test_out_lies_in_memory_as_query_does(heads_side_by_side):
    """A model's next step joins the heads of a position: a view where they lie side by side."""
    q, k, v = qkv(48, 32)
    if heads_side_by_side:
        q = q.detach().transpose(1, 2).contiguous().transpose(1, 2)
    out = attention(q, k, v, enable_gqa=True)
    assert (out.transpose(1, 2) if heads_side_by_side else out).is_contiguous()


@pytest.mark.parametrize(("d", "e"), [(0, 8), (8, 0), (0, 0)])
def test_heads_of_no_columns(d, e):
    """Without columns of q and k all scores are 0: out is a mean of values."""
    q, k, v = qkv(d, e)
    means = v.mean(2, keepdim=True).repeat_interleave(2, 1).expand(2, 4, 20, e)
    expected = torch.empty(2, 4, 20, 0) if d else means
    torch.testing.assert_close(latent_attention(q, k, v, scale=1.0, enable_gqa=True)[0], expected)


@pytest.mark.parametrize(("h", "length", "s"), [(0, 20, 24), (4, 0, 24), (4, 20, 0)])
def test_nothing_attends_or_is_attended_to(h, length, s):
    q, k, v = inputs = qkv(48, 32, h=h, g=h, length=length, s=s)
    out, lse = attention_with_lse(q, k, v)
    assert out.shape == (2, h, length, 32) and lse.shape == (2, h, length) and not out.any()
    assert all(not gradient.any() for gradient in torch.autograd.grad(out.sum(), inputs))


def test_heads_beyond_the_largest_are_refused_with_their_shapes():
    q, k, v = qkv(16, 264)
    with pytest.raises(NotImplementedError, match=r"heads of up to 256: .*value \(2, 2, 24, 264\)"):
        attention(q, k, v, enable_gqa=True)


def test_configs_are_those_of_heads_as_wide_as_the_wider():
    assert of_one_size(sized("bf16", b=1, h=2, l=64, d=64, e=128))["d"] == 128
    assert of_one_size(sized("bf16", b=1, h=2, l=64, d=192, e=128))["d"] == 192


def test_operations_are_counted_by_the_columns_of_each_product():
    """Of 3 queries and keys 6 pairs see each other; products with q or k have d columns, those with v or out e."""
    problem = sized("bf16", causal=True, b=1, h=1, l=3, d=48, e=32)
    forward, backward = (DECLARATION.passes[name].flops(problem) for name in ("forward", "backward"))
    assert forward == {"Q K^T": 2 * 6 * 48, "P V": 2 * 6 * 32}
    assert sum(backward.values()) == 2 * 6 * (3 * 48 + 2 * 32)
    assert DECLARATION.forward.bytes(problem) == {"q": 288, "k": 288, "v": 192, "out": 192, "lse": 12}


@pytest.mark.parametrize(
    ("b", "h", "length", "d", "e", "by_tiles"),
    [
        (2, 16, 194, 96, 64, False),  # 33 us by tiles, 19 by blocks
        (14, 40, 435, 64, 128, False),  # 350, 286
        (5, 128, 792, 64, 128, False),  # 914, 792
        (10, 16, 1950, 96, 64, True),  # 783, 920
        (2, 40, 4096, 96, 64, True),  # 1354, 1775
        (4, 32, 2048, 64, 128, True),  # 748, 770
        (11, 16, 130, 192, 128, True),  # 72, 90: wide heads have other tiles
    ],
)
def test_gradients_of_small_heads_are_by_what_an_h200_was_faster_with(b, h, length, d, e, by_tiles):
    problem = sized("bf16", causal=True, b=b, h=h, l=length, d=d, e=e)
    assert (handles_gradient(problem, H200) == "") == by_tiles
