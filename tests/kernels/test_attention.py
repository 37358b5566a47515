"""Attention on the interpreter: masks, groups, lse and its gradient, packed batches, layouts, refusals."""

import math
import random

import pytest
import torch
from atlas.declaration import GPU
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.attention import DECLARATION, listing, operators
from kernels.attention import attention_varlen as varlen
from kernels.attention import attention_with_lse as with_lse
from kernels.attention import scaled_dot_product_attention as attention
from kernels.attention.blocks import described
from kernels.attention.cases import sized
from kernels.attention.operators import attention_operator
from kernels.attention.spaces import fits_backward, fits_forward
from kernels.attention_masked import masked_attention
from kernels.nn import RotaryEmbedding, SelfAttention

H200 = GPU("h200", "cuda", 90, sms=132, shared_bytes=232448, memory_bytes=141 * 2**30, l2_bytes=60 * 2**20)


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def qkv(b=1, h=2, g=2, length=20, s=20, d=16, dtype=torch.float32):
    return (
        randn(b, h, length, d, dtype=dtype),
        randn(b, g, s, d, dtype=dtype, seed=1),
        randn(b, g, s, d, seed=2).to(dtype),
    )


def close(found, expected, tolerance=5e-6):
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


def against_torch(tensors, tolerance=5e-6, **arguments):
    """Output and gradients agree with those of torch in float64."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    out = attention(*leaves, **arguments)
    expected = functional.scaled_dot_product_attention(*exact, **arguments)
    close(out, expected, tolerance)
    dout = randn(*out.shape, dtype=out.dtype, seed=3)
    found = torch.autograd.grad(out, leaves, dout)
    for gradient, reference in zip(found, torch.autograd.grad(expected, exact, dout.double()), strict=True):
        close(gradient, reference, tolerance)
    return found


@pytest.mark.parametrize(("length", "s"), [(20, 37), (37, 20)])  # the mask starts in the top left corner either way
def test_a_causal_mask_is_aligned_as_torch_s_is(length, s):
    against_torch(qkv(length=length, s=s), is_causal=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("query", "key"),
    [
        ((20, 16), (24, 16)),
        ((2, 20, 16), (2, 24, 16)),
        ((2, 3, 2, 20, 16), (2, 3, 2, 24, 16)),
        ((2, 3, 2, 20, 16), (3, 2, 24, 16)),  # one batch of keys for both
        ((2, 2, 20, 16), (1, 2, 24, 16)),
        ((2, 20, 16), (3, 2, 24, 16)),  # queries without a batch for each of keys
    ],
    ids=str,
)
def test_any_number_of_dimensions_of_batch_are_broadcast_as_torch_s(query, key, causal):
    against_torch((randn(*query), randn(*key, seed=1), randn(*key, seed=2)), is_causal=causal)


@pytest.mark.parametrize("mask", [(20, 24), (2, 20, 24), (3, 1, 20, 24), (2, 1, 1, 1, 24), (2, 3, 2, 20, 24)], ids=str)
def test_masks_of_several_dimensions_of_batch_are_broadcast_as_torch_s(mask):
    seen = randn(*mask, seed=5) > -1
    tensors = randn(2, 3, 2, 20, 16), randn(2, 3, 2, 24, 16, seed=1), randn(2, 3, 2, 24, 16, seed=2)
    against_torch(tensors, attn_mask=seen)


@pytest.mark.parametrize("mask", [(4, 3, 2, 20, 24), (2, 2, 3, 2, 20, 24), (3, 1, 20, 25)], ids=str)
def test_masks_that_cannot_be_broadcast_to_the_batch_are_told(mask):
    tensors = randn(2, 3, 2, 20, 16), randn(2, 3, 2, 24, 16), randn(2, 3, 2, 24, 16)
    with pytest.raises(ValueError, match=r"cannot be broadcast to .* \(2, 3, 2, 20, 24\)"):
        attention(*tensors, attn_mask=torch.ones(mask, dtype=torch.bool))


def test_log_sum_exps_have_the_dimensions_of_the_output():
    q, k, v = (randn(2, 3, 2, length, 16) for length in (20, 24, 24))
    for out, lse in (with_lse(q, k, v), masked_attention(q, k, v, window=(3, 3))):
        assert (out.shape, lse.shape) == ((2, 3, 2, 20, 16), (2, 3, 2, 20))
    assert with_lse(q[0, 0, 0], k[0, 0, 0], v[0, 0, 0])[1].shape == (20,)


def test_heads_in_groups_need_enable_gqa_as_in_torch():
    against_torch(qkv(h=4, g=2), enable_gqa=True)
    with pytest.raises(ValueError, match="enable_gqa"):
        attention(*qkv(h=4, g=2))
    with pytest.raises(ValueError, match="divides"):
        attention(*qkv(h=4, g=3), enable_gqa=True)


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"attn_mask": torch.ones(20, 20).tril().bool()}], ids=",".join
)
def test_one_head_is_that_of_all_queries_without_it_too(options):
    """torch broadcasts it; models with one head of keys and values pass it as it is."""
    q, k, v = qkv(h=4, g=1)
    against_torch((q, k, v), **options)
    torch.testing.assert_close(attention(q[0], k[0], v[0], **options), attention(q, k, v, **options)[0])


@pytest.mark.parametrize("scale", [0.7, 0.0, -0.5])  # rows' maxima are taken before scores are scaled
def test_any_scale_is_that_of_torch(scale):
    against_torch(qkv(), scale=scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf])
def test_a_scale_that_is_no_number_makes_no_weights(scale, dtype):
    tensors = qkv(length=5, s=7, dtype=dtype)
    leaves, exact = [t.requires_grad_() for t in tensors], [t.detach().double().requires_grad_() for t in tensors]
    out, lse = with_lse(*leaves, scale=scale)
    with sdpa_kernel(SDPBackend.MATH):  # torch's kernel for CPUs gives 0 for a scale of NaN, its formula NaN
        expected = functional.scaled_dot_product_attention(*exact, scale=scale)
    assert out.isnan().all() and expected.isnan().all() and lse.isnan().all()
    found, reference = (torch.autograd.grad(y.sum(), x) for y, x in ((out, leaves), (expected, exact)))
    assert all(torch.equal(a.isnan(), b.isnan()) for a, b in zip(found, reference, strict=True))


@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_a_query_of_infinity_spoils_its_row_alone(scale):
    q, k, v = qkv(length=5, s=7)
    q[0, 0, 2] = math.inf
    with sdpa_kernel(SDPBackend.MATH):
        expected = functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), scale=scale)
    torch.testing.assert_close(attention(q, k, v, scale=scale).double(), expected, rtol=5e-6, atol=5e-6, equal_nan=True)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_heads_of_no_elements_weigh_all_keys_alike(causal):
    tensors = [x.requires_grad_() for x in qkv(length=3, s=2, d=0)]
    seen = torch.tensor([1.0, 2.0, 2.0] if causal else [2.0] * 3)
    for scale in (None, 0.5, -1.0, math.nan):
        out, lse = with_lse(*tensors, is_causal=causal, scale=scale)
        assert out.shape == (1, 2, 3, 0)
        torch.testing.assert_close(lse, seen.log().expand(1, 2, 3))
        assert attention(*tensors, is_causal=causal, scale=scale).shape == (1, 2, 3, 0)
        gradients = torch.autograd.grad(lse.sum() + out.sum(), tensors)
        assert [x.shape for x in gradients] == [x.shape for x in tensors]
    assert with_lse(*qkv(length=3, s=0, d=0))[1].eq(-math.inf).all()


def test_sequences_of_heads_of_no_elements_weigh_their_keys_alike():
    q, k, v = torch.empty(5, 2, 0), torch.empty(6, 2, 0), torch.empty(6, 2, 0)
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 3, 5], [0, 4, 6]))
    out, lse = varlen(q, k, v, cu_q, cu_k, 3, 4)
    assert out.shape == q.shape
    torch.testing.assert_close(lse, torch.tensor([4.0, 4.0, 4.0, 2.0, 2.0]).log().expand(2, 5))


def test_gradients_are_in_the_dtype_of_the_inputs():
    assert {x.dtype for x in against_torch(qkv(dtype=torch.float16), 5e-3, is_causal=True)} == {torch.float16}


def test_lse_is_the_logarithm_of_the_sum_and_has_a_gradient():
    tensors = qkv(length=9, s=12)
    leaves, exact = ([t.to(dtype).requires_grad_() for t in tensors] for dtype in (torch.float32, torch.float64))
    lse = with_lse(*leaves, scale=0.3)[1]
    expected = torch.logsumexp(0.3 * exact[0] @ exact[1].transpose(-1, -2), dim=-1)
    close(lse, expected)
    dlse = randn(*lse.shape, seed=4)
    found = torch.autograd.grad(lse, leaves, dlse)
    for gradient, reference in zip(found[:2], torch.autograd.grad(expected, exact[:2], dlse.double()), strict=True):
        close(gradient, reference)
    assert not found[2].any()  # values do not enter


def test_parts_of_the_keys_merge_to_the_whole_by_their_lse():
    q, k, v = qkv(s=40)
    (first, lse_first), (second, lse_second) = (with_lse(q, k[:, :, part], v[:, :, part]) for part in _halves(40))
    share = torch.sigmoid(lse_first - lse_second)[..., None]
    close(share * first + (1 - share) * second, attention(q, k, v), 1e-5)


def _halves(length):
    return slice(0, length // 2), slice(length // 2, length)


def test_tensors_are_read_where_they_lie_and_the_output_lies_as_the_query():
    rows = [randn(2, 20, 2, 16, seed=seed) for seed in range(3)]  # (batch, length, heads, head_dim) of a projection
    out = attention(*(x.transpose(1, 2) for x in rows))
    assert out.stride() == rows[0].transpose(1, 2).stride()
    close(out, attention(*(x.transpose(1, 2).contiguous() for x in rows)))
    packed = randn(2, 20, 6, 16)  # q, k and v beside one another, with gaps between their rows
    against_torch([x.transpose(1, 2) for x in packed.split(2, dim=2)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_with_gaps_between_them_are_read_where_they_lie_in_every_dtype(dtype):
    tolerance = {torch.float32: 5e-6, torch.float16: 5e-3, torch.bfloat16: 6e-2}[dtype]
    packed = randn(2, 7, 3, 2, 16, dtype=dtype)  # of a projection: batch, length, which of the three, heads, head_dim
    against_torch([x.transpose(1, 2) for x in packed.unbind(2)], tolerance, is_causal=True)
    narrow = randn(1, 2, 7, 2, dtype=dtype)[..., :1]  # heads of one element have any stride
    against_torch([narrow, narrow.clone() / 2, narrow], tolerance)


def test_elements_that_do_not_lie_side_by_side_are_copied():
    against_torch([x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in qkv()])


@pytest.mark.parametrize("causal", [False, True])
def test_sequences_of_different_lengths_are_as_each_alone(causal):
    queries, keys = [3, 20, 0, 7], [5, 20, 4, 40]  # one without queries, one with fewer queries than keys
    q, k, v = randn(30, 2, 16), randn(69, 1, 16, seed=1), randn(69, 1, 16, seed=2)
    cu_q, cu_k = (torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (queries, keys))
    leaves, exact = ([x.to(dtype).requires_grad_() for x in (q, k, v)] for dtype in (torch.float32, torch.float64))
    out, lse = varlen(*leaves, cu_q, cu_k, 20, 40, is_causal=causal)
    assert lse.shape == (2, 30)
    expected = torch.cat([_alone(*parts, causal) for parts in _sequences(exact, queries, keys)], dim=1).transpose(0, 1)
    close(out, expected)
    dout = randn(*out.shape, seed=3)
    found, reference = torch.autograd.grad(out, leaves, dout), torch.autograd.grad(expected, exact, dout.double())
    for gradient, other in zip(found, reference, strict=True):
        close(gradient, other)


@pytest.mark.parametrize(("head_dim", "causal"), [(16, True), (24, False), (32, True)])
def test_descriptors_of_sequences_end_where_they_do(monkeypatch, head_dim, causal):
    """What lies behind a sequence is read as 0, and not written; rows of keys and values have gaps between them."""
    chosen = operators.packed_config
    monkeypatch.setattr(operators, "packed_config", lambda *args: (True, chosen(*args)[1]))
    queries, keys = [3, 70, 0, 7, 5], [5, 70, 4, 100, 2]
    tensors = randn(85, 4, head_dim), *randn(181, 4, head_dim, seed=1).split(2, dim=1)
    leaves, exact = ([x.half().to(dtype).requires_grad_() for x in tensors] for dtype in (torch.float16, torch.float64))
    cu_q, cu_k = (torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (queries, keys))
    out, _ = varlen(*leaves, cu_q, cu_k, 70, 100, is_causal=causal)
    parts = [
        _alone(*(part[:, none:] if part is q else part.repeat_interleave(2, dim=0) for part in (q, k, v)), causal)
        for q, k, v in _sequences(exact, queries, keys)
        for none in [max(0, q.shape[1] - k.shape[1]) if causal else 0]
    ]
    rows = [i for i in range(85) if not causal or not 80 <= i < 83]  # three queries of the last come before any key
    expected = torch.cat(parts, dim=1).transpose(0, 1)
    dout = randn(*out.shape, seed=3)
    close(out[rows], expected, 5e-3)
    found = torch.autograd.grad(out, leaves, dout.half())
    for gradient, other in zip(found, torch.autograd.grad(expected, exact, dout[rows].half().double()), strict=True):
        close(gradient, other, 5e-3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("of_keys", [False, True])
@pytest.mark.parametrize("sequences", [1, 5, 150])
def test_tiles_of_sequences_are_listed_longest_first(causal, of_keys, sequences):
    draw = random.Random(sequences)
    own, others = ([draw.choice((0, 3, 40, 100, 200)) for _ in range(sequences)] for _ in range(2))
    ends_own, ends_others = (torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (own, others))
    tiles, capacity = listing.listed(ends_own, ends_others, sum(own), 200, causal, of_keys, 32, 16)
    expected = []
    for i, (mine, theirs) in enumerate(zip(own, others, strict=True)):
        for block in range(-(-mine // 32)):
            meets = theirs
            if causal:
                seen = min(theirs, (block + 1) * 32 + theirs - mine)
                meets = theirs - max(block * 32 - (mine - theirs), 0) if of_keys else seen
            record = [block, i, int(ends_own[i]), mine, int(ends_others[i]), theirs]
            expected.append((-max(-(-meets // 16), 1), i, block if of_keys else -block, record))
    assert int(tiles[0]) == len(expected) <= capacity
    found = tiles.view(-1, listing.RECORD.value)[1 : 1 + len(expected), :6].tolist()
    assert found == [record for *_, record in sorted(expected)]


def _sequences(tensors, queries, keys):
    q, k, v = (x.transpose(0, 1).split(n, dim=1) for x, n in zip(tensors, (queries, keys, keys), strict=True))
    return zip(q, k, v, strict=True)


def _alone(q, k, v, causal):
    """Attention of one sequence by the formula; the last query sees the last key."""
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    seen = torch.ones(s.shape[-2:], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
    return torch.softmax(s.masked_fill(~seen, -math.inf) if causal else s, dim=-1) @ v


def test_a_packed_query_that_sees_no_key_gets_nothing():
    q, k, v = (randn(n, 1, 16, seed=n).requires_grad_() for n in (9, 4, 5))
    cu_q, cu_k = torch.tensor([0, 9], dtype=torch.int32), torch.tensor([0, 4], dtype=torch.int32)
    out, lse = varlen(q, k, v[:4], cu_q, cu_k, 9, 4, is_causal=True)  # the first five queries come before any key
    assert not out[:5].any() and (lse[:, :5] == -math.inf).all() and out[5:].all()
    gradients = torch.autograd.grad(out, (q, k, v), randn(*out.shape))
    assert not gradients[0][:5].any() and all(x.isfinite().all() for x in gradients)


@pytest.mark.parametrize("value", [1.0, math.inf, math.nan])
@pytest.mark.parametrize("lengths", [{"s": 0}, {"length": 0}], ids=["no keys", "no queries"])
def test_attention_to_nothing_is_nothing_whatever_the_others_hold(lengths, value):
    q, k, v = ((value * x.abs()).requires_grad_() for x in qkv(**lengths))
    out, lse = with_lse(q, k, v)
    assert not out.any() and (lse == -math.inf).all()
    gradients = torch.autograd.grad(out, (q, k, v), torch.full_like(out, value))
    assert all(x is not None and not x.any() for x in gradients)


def test_a_batch_without_keys_is_nothing_whatever_the_queries_hold():
    q, k, v = torch.full((5, 2, 16), math.inf, requires_grad=True), randn(0, 2, 16), randn(0, 2, 16)
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 5], [0, 0]))
    out, lse = varlen(q, k, v, cu_q, cu_k, 5, 0)
    assert not out.any() and (lse == -math.inf).all()
    assert not torch.autograd.grad(out.sum(), q)[0].any()


def test_second_derivatives_are_refused():
    q, k, v = (x.requires_grad_() for x in qkv(length=3, s=3))
    (dq,) = torch.autograd.grad(attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        torch.autograd.grad(dq.sum(), q)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"attn_mask": torch.ones(20, 20).double()}, TypeError, "bools"),
        ({"attn_mask": torch.ones(3, 20)}, ValueError, "broadcast"),
        ({"attn_mask": torch.ones(20, 20), "is_causal": True}, ValueError, "window="),
        ({"window": (-2, 0)}, ValueError, "keys before"),
        ({"dropout_p": 0.1}, NotImplementedError, "dropout"),
        ({"query": randn(16)}, ValueError, "two dimensions and more"),
        ({"query": randn(1, 2, 20, 16).double()}, TypeError, "one dtype"),
        ({"query": randn(1, 2, 20, 24)}, ValueError, "do not agree"),
        ({"query": randn(3, 2, 20, 16), "key": randn(2, 2, 20, 16)}, ValueError, "before the heads"),
        ({"query": randn(3, 20, 16)}, ValueError, "as many heads"),
        ({"value": randn(1, 2, 20, 264)}, NotImplementedError, "up to 256"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_supported_is_refused_with_a_remedy(change, error, said):
    arguments = dict(zip(("query", "key", "value"), qkv(), strict=True)) | change
    with pytest.raises(error, match=said):
        attention(**arguments)


def test_it_compiles_into_one_graph():
    tensors = [x.requires_grad_() for x in qkv()]
    compiled = torch.compile(lambda q, k, v: attention(q, k, v, is_causal=True), fullgraph=True, backend="aot_eager")
    out, expected = compiled(*tensors), attention(*tensors, is_causal=True)
    assert torch.equal(out, expected)
    dout = randn(*out.shape, seed=3)
    pairs = zip(torch.autograd.grad(out, tensors, dout), torch.autograd.grad(expected, tensors, dout), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_the_operator_keeps_torch_s_rules():
    tensors = [x.requires_grad_() for x in qkv(h=1, g=1, length=5, s=5)]
    torch.library.opcheck(attention_operator.operator.op, (*tensors, True, 0.25))


def test_a_dimension_of_one_element_may_have_any_stride():
    x = randn(1, 1, 20, 16).as_strided((1, 1, 20, 16), (3, 5, 16, 1))  # as slices of a larger tensor have it
    assert [stride % 16 for stride in described(x, 64).strides] == [0, 0, 0, 1]


@pytest.mark.parametrize("d", [64, 80, 128, 256])
def test_defaults_on_hopper_are_configs_of_the_space(d):
    problem = sized("bf16", "", True, b=4, h=16, l=4096, d=d)
    for work, fits in ((DECLARATION.forward, fits_forward), (DECLARATION.backward, fits_backward)):
        variant = work.variant("descriptor")
        config = variant.default(problem, H200)
        assert not fits(config, problem, H200)
        assert config in list(variant.configs(problem, H200))


@pytest.mark.parametrize(
    ("direction", "causal", "sizes", "name"),
    [
        ("forward", True, {"b": 2, "h": 8, "l": 512, "d": 64}, "small"),  # 64 tiles of 128 queries for 132 SMs
        ("forward", False, {"b": 1, "h": 28, "g": 4, "l": 256, "d": 96}, "small"),
        ("forward", True, {"b": 4, "h": 8, "l": 512, "d": 64}, "gluon"),
        ("forward", True, {"b": 4, "h": 16, "l": 512, "d": 64}, "gluon"),  # 256: nearly two rounds
        ("forward", False, {"b": 4, "h": 8, "l": 768, "d": 64}, "small"),  # 192: the second round has few
        ("forward", False, {"b": 3, "h": 12, "l": 541, "d": 128}, "gluon"),  # so here, but `gluon` gains more
        ("forward", False, {"b": 1, "h": 4, "l": 2048, "d": 128}, "small"),  # 64, however long
        ("forward", True, {"b": 12, "h": 16, "l": 128, "d": 64}, "small"),  # one block of keys: no overlap
        ("forward", True, {"b": 12, "h": 16, "l": 128, "d": 96}, "gluon"),  # has a kernel for these
        ("forward", False, {"b": 2, "h": 8, "l": 512, "d": 32}, "descriptor"),
        ("backward", True, {"b": 2, "h": 8, "l": 512, "d": 64}, "small"),  # 32 tiles of 256 keys
        ("backward", False, {"b": 3, "h": 12, "l": 541, "d": 128}, "small"),  # 180 of 128: two rounds
        ("backward", False, {"b": 11, "h": 25, "l": 474, "d": 96}, "gluon"),
        ("backward", False, {"b": 4, "h": 40, "g": 8, "l": 573, "d": 80}, "gluon"),  # of 80 columns
        ("backward", True, {"b": 4, "h": 16, "l": 512, "d": 64}, "small"),
        ("backward", True, {"b": 1, "h": 2, "l": 4096, "d": 64}, "small"),  # 32 tiles
        ("backward", False, {"b": 1, "h": 8, "l": 4096, "d": 128}, "gluon"),
        ("backward", True, {"b": 2, "h": 32, "g": 8, "l": 256, "d": 80}, "small"),
        ("backward", False, {"b": 2, "h": 32, "g": 4, "l": 512, "d": 128}, "gluon"),  # deals out groups
        ("backward", True, {"b": 1, "h": 4, "l": 128, "d": 64}, "gluon"),  # has a kernel for these
        ("backward", True, {"b": 4, "h": 48, "g": 8, "l": 571, "d": 32}, "descriptor"),  # adds no columns
    ],
)
def test_blocks_of_64_go_first_on_hopper_where_its_tiles_are_few(direction, causal, sizes, name):
    work, problem = DECLARATION.passes[direction], sized("bf16", "", causal, **sizes)
    variant = work.preferred(problem, H200)
    assert variant.name == name
    assert variant.default(problem, H200) in list(variant.configs(problem, H200))


def test_the_module_is_the_projections_around_the_function():
    torch.manual_seed(0)
    module, x = SelfAttention(32, num_heads=2, num_kv_heads=1), randn(2, 9, 32)
    q, k, v = module.in_proj(x).split((32, 16, 16), dim=-1)
    q, k, v = (y.unflatten(-1, (-1, 16)).transpose(1, 2) for y in (q, k, v))
    expected = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    close(module(x), module.out_proj(expected.transpose(1, 2).flatten(2)))
    rotary = RotaryEmbedding(16, 9)
    assert not torch.allclose(module(x, rotary), module(x))
    for heads in (3, 0):
        with pytest.raises(ValueError, match="divide"):
            SelfAttention(32, num_heads=4, num_kv_heads=heads)
    with pytest.raises(ValueError, match=r"x\[None\] of one sequence"):
        module(x[0])
