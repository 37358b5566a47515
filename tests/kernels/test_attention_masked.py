"""Attention under masks and in windows, interpreted: broadcasts, gradients, windows, queries that see nothing."""

import dataclasses
import functools
import itertools
import math
import sys

import pytest
import torch
from atlas.declaration.hardware import GPU, INTERPRETER
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import kernels
from kernels.attention import attention_varlen as varlen
from kernels.attention import attention_with_lse as with_lse
from kernels.attention import scaled_dot_product_attention as attention
from kernels.attention_masked import backward, few_keys, masked_attention, spaces
from kernels.attention_masked.aligned import aligned
from kernels.attention_masked.blocks import columns_of
from kernels.attention_masked.cases import case_of, seen_through, sized
from kernels.attention_masked.declaration import DECLARATION
from kernels.attention_masked.operators import masked_operator
from kernels.nn import SelfAttention

LENGTH, KEYS = 40, 45
H200 = GPU("h200", "cuda", 90, sms=132, shared_bytes=232448, memory_bytes=141 * 2**30, l2_bytes=60 * 2**20)


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def qkv(b=2, h=4, g=2, length=LENGTH, s=KEYS, d=16):
    return randn(b, h, length, d), randn(b, g, s, d, seed=1), randn(b, g, s, d, seed=2)


def bools(*shape):
    mask = randn(*shape, seed=7) > -0.5
    if len(shape) > 1 and shape[-2] > 5:
        mask[..., 5, :] = False  # a query that sees nothing
    return mask


def band(length, s, window):
    left, right = (0 if reach is None else reach + 1 for reach in window)
    return seen_through(length, s, left, right, "cpu")


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


def by_formula(tensors, mask=None, window=None):
    if window is not None:
        seen = band(tensors[0].shape[2], tensors[1].shape[2], window)
        mask = seen if mask is None else mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -math.inf)
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(*tensors, mask, enable_gqa=True)


def against_torch(tensors, mask=None, window=None):
    """Output and gradients, also of numbers that are added, agree with those of torch in float64."""
    added = mask is not None and mask.is_floating_point()
    given = [*tensors, mask] if added else tensors
    leaves, exact = ([x.detach().to(dtype).requires_grad_() for x in given] for dtype in (torch.float32, torch.float64))
    masks = (leaves[3], exact[3]) if added else (mask, mask)
    out = attention(*leaves[:3], masks[0], enable_gqa=True, window=window)
    expected = by_formula(exact[:3], masks[1], window)
    close(out, expected)
    dout = randn(*out.shape, seed=3)
    found, reference = torch.autograd.grad(out, leaves, dout), torch.autograd.grad(expected, exact, dout.double())
    for gradient, other in zip(found, reference, strict=True):
        close(gradient, other)


SHAPES = [(LENGTH, KEYS), (2, 1, 1, KEYS), (4, LENGTH, KEYS), (2, 4, LENGTH, KEYS), (2, 1, LENGTH, 1), (KEYS,), ()]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bools_say_which_pairs_take_part_however_they_are_broadcast(shape):
    against_torch(qkv(), bools(*shape))


@pytest.mark.parametrize("shape", SHAPES[:5], ids=str)
def test_numbers_are_added_and_have_a_gradient_however_they_are_broadcast(shape):
    against_torch(qkv(), randn(*shape, seed=7))


@pytest.mark.parametrize(
    "mask",
    [
        bools(2, 1, 1, KEYS).expand(2, 4, LENGTH, KEYS),
        randn(2, 1, KEYS, LENGTH, seed=7).mT,
        randn(2, 4, 2 * LENGTH, 2 * KEYS, seed=7)[:, :, ::2, 1::2],
    ],
    ids=["expanded", "transposed", "every other"],
)
def test_a_mask_is_read_where_it_lies(mask):
    against_torch(qkv(), mask)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float32], ids=str)
def test_only_a_mask_whose_rows_begin_off_4_bytes_is_copied(dtype):
    whole = torch.arange(2 * 3 * 6 * 80).view(2, 3, 6, 80).remainder(7).to(dtype)
    odd, off = whole[..., :45].contiguous(), dtype != torch.float32
    for mask, copied in (
        (whole, False),
        (whole[..., :75], off),  # rows begin on 16 bytes, and end off them
        (odd, off),
        (odd[:1].expand(2, 3, 6, 45), off),
        (odd[:, :, :1], False),  # the same for all queries
        (odd.mT, False),
    ):
        read_once = math.prod(mask.shape) // (1 if mask.stride(0) else 2)
        assert aligned(mask, read_once) is mask
        found = aligned(mask, 2 * read_once)
        assert (found is not mask) == copied
        if copied:
            assert found.shape[3] % 16 == 0 and found.is_contiguous()
            assert found.shape[0] == (2 if mask.stride(0) else 1)
            assert torch.equal(found[..., : mask.shape[3]].expand_as(mask), mask)


def test_a_copy_of_a_mask_takes_a_gibibyte_at_most(monkeypatch):
    """Heads with masks of their own: 64 of 8191 tokens would take 8.6 GB in bf16."""
    monkeypatch.setattr(sys.modules[aligned.__module__], "launch", lambda *call, **meta: None)
    for heads, copied in ((8, True), (9, False)):
        mask = torch.empty(1, heads, 8191, 8191, device="meta", dtype=torch.bfloat16)
        assert (aligned(mask, 2 * mask.numel()) is not mask) == copied


@pytest.mark.parametrize(("reach", "copies"), [(0, 2), (2, 0)])
def test_a_mask_of_which_a_window_shows_little_is_not_copied(monkeypatch, reach, copies):
    """Of 16385 tokens a copy takes 512 MiB, of which those within 64 of each other are a hundredth."""
    made = []
    monkeypatch.setattr(sys.modules[aligned.__module__], "launch", lambda *call, **meta: made.append(call))
    q, k, v = (x.half() for x in qkv())
    mask = randn(1, 1, LENGTH, KEYS, seed=7).half()
    given = q, k, v, mask, *masked_operator(q, k, v, mask, 0.25, reach, reach), q, None, 0.25, reach, reach
    config = spaces.backward_default(case_of(q, k, mask, reach, reach), INTERPRETER)
    backward.launch_backward(False, *given, config=config)
    assert len(made) == copies


@pytest.mark.parametrize("by", [few_keys.launch_few_keys, functools.partial(backward.launch_backward, True)])
def test_gradients_of_keys_are_the_same_however_queries_are_dealt_out(monkeypatch, by):
    q, k, v = (x.half() for x in qkv(1, 6, 2, 100, KEYS))
    mask, dout = randn(1, 6, 100, KEYS, seed=7).half(), randn(*q.shape, seed=3).half()
    given = q, k, v, mask, *masked_operator(q, k, v, mask, 0.25, 30, 20), dout, None, 0.25, 30, 20
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    out = by_formula([exact[0] * (0.25 * q.shape[3] ** 0.5), *exact[1:]], mask.double(), (29, 19))
    expected = torch.autograd.grad(out, exact, dout.double())
    config = few_keys.few_keys_default if by is few_keys.launch_few_keys else spaces.backward_default
    config = config(case_of(q, k, mask, 30, 20), INTERPRETER)
    for parts in (1, 3):
        asked = []
        monkeypatch.setattr(backward, "parts_of", lambda *sizes: asked.append(sizes) or parts)  # noqa: B023
        monkeypatch.setattr(few_keys, "dealt_out", lambda *sizes: asked.append(sizes) or (parts, 6 // parts))  # noqa: B023
        for gradient, other in zip(by(*given, config=config), expected, strict=True):
            close(gradient, other, 5e-3)
        assert len(asked) == 1


@pytest.mark.parametrize("arch", [100, 120])
def test_few_keys_are_for_hopper_alone(arch):
    """Of 128 keys and columns sm_120 was asked for 129 KiB of shared memory, where a program has at most 99."""
    work, problem = DECLARATION.passes["backward"], sized("bf16", mask="bool", b=2, h=8, l=128, s=128, d=128)
    other = dataclasses.replace(H200, arch=arch, shared_bytes=99 * 1024)
    assert [work.preferred(problem, gpu).name for gpu in (H200, other)] == ["few_keys", "descriptor"]


@pytest.mark.parametrize("keys", [1, 64, 65, 100, 128])
def test_few_keys_have_configs_whatever_their_number(keys):
    variant = DECLARATION.passes["backward"].variant("few_keys")
    problem = sized("bf16", mask="bool", b=2, h=8, l=128, s=keys, d=64)
    configs = list(variant.configs(problem, H200))
    assert variant.default(problem, H200) in configs
    assert {config["BLOCK_N"] for config in configs} == {64 if keys <= 64 else 128}


@pytest.mark.parametrize(
    ("sizes", "forward", "keys"),
    [
        ({"mask": "bool", "s": 1024, "d": 128}, (64, 64, 4, 2), (64, 64, 4, 2)),  # several programs to an SM
        ({"mask": "bool", "s": 4096, "d": 128}, (128, 64, 8, 3), (64, 64, 4, 2)),  # keys are read half as often
        ({"mask": "bool keys", "s": 77, "d": 64}, (64, 64, 4, 2), (128, 64, 4, 2)),  # less of a tail
        ({"mask": "added", "s": 1024, "d": 64}, (64, 64, 4, 3), (64, 64, 4, 2)),  # a block of the mask in registers
        ({"mask": "added", "s": 1024, "d": 72}, (128, 64, 4, 3), (64, 64, 4, 2)),  # two parts: 80 columns
        ({"mask": "bool keys", "s": 1305, "d": 192}, (128, 64, 8, 2), (64, 64, 8, 2)),
        ({"mask": "none", "s": 1024, "d": 192, "left": 200, "right": 1}, (64, 32, 4, 2), (64, 64, 8, 2)),  # narrow
        ({"mask": "none", "s": 1024, "d": 256, "left": 500, "right": 1}, (128, 64, 8, 2), (64, 64, 8, 2)),
    ],
)
def test_defaults_on_hopper_go_by_what_a_mask_takes(sizes, forward, keys):
    problem = sized("bf16", b=8, h=16, l=1024, **sizes)
    config = spaces.forward_default(problem, H200)
    assert (tuple(config.values()), spaces.fits_forward(config, problem, H200)) == (forward, "")
    config = spaces.backward_default(problem, H200)
    assert (tuple(config.values())[:4], spaces.fits_backward(config, problem, H200)) == (keys, "")


@pytest.mark.parametrize(
    ("sizes", "forward"),
    [
        ({"mask": "bool", "h": 14, "l": 1024, "d": 128}, (64, 64, 4, 2)),  # more programs than SMs: two to one
        ({"mask": "bool", "h": 12, "l": 700, "d": 128}, (64, 64, 4, 3)),  # each has one
        ({"mask": "bool", "h": 16, "l": 1000, "d": 80}, (64, 64, 4, 3)),  # of heads in two parts two fit anyway
        ({"mask": "bool", "h": 14, "l": 1024, "d": 64}, (64, 64, 4, 3)),
        ({"mask": "bool keys", "h": 14, "l": 1024, "d": 128}, (64, 64, 4, 3)),
        ({"mask": "added", "h": 12, "l": 1024, "d": 128}, (128, 64, 8, 3)),
    ],
)
def test_few_programs_are_as_large_as_lets_all_of_them_run_at_once(sizes, forward):
    problem = sized("bf16", b=1, s=sizes["l"], **sizes)
    config = spaces.forward_default(problem, H200)
    assert (tuple(config.values()), spaces.fits_forward(config, problem, H200)) == (forward, "")


def test_heads_of_65_to_96_are_computed_in_two_parts():
    assert {d: columns_of(d) for d in (64, 65, 80, 81, 96, 97)} == {
        64: (64, 0), 65: (64, 16), 80: (64, 16), 81: (64, 32), 96: (64, 32), 97: (128, 0)
    }  # fmt: skip
    for d in (65, 72, 96):
        against_torch(qkv(d=d), bools(2, 1, 1, KEYS))


@pytest.mark.parametrize(("d", "larger"), [(64, True), (80, True), (96, False), (128, False)])
def test_what_two_parts_spare_goes_into_larger_blocks(d, larger):
    """An A100's registers hold queries, too: of 64 and 16 columns they have room for 64 keys."""
    a100 = GPU("a100", "cuda", 80, sms=108, shared_bytes=166912, memory_bytes=80 * 2**30, l2_bytes=40 * 2**20)
    problem = sized("bf16", mask="bool keys", b=8, h=16, l=1024, d=d)
    default = spaces.forward_default(problem, a100, pointers=True)
    assert not spaces.fits_forward(default, problem, a100, pointers=True)
    assert (default["BLOCK_N"] == 64) == larger


def test_minus_infinity_and_the_least_number_hide_a_key_in_every_dtype():
    for dtype, least in itertools.product((torch.float32, torch.float16, torch.bfloat16), (-math.inf, None)):
        q, k, v = (x.to(dtype) for x in qkv())
        mask = torch.zeros(LENGTH, KEYS, dtype=dtype)
        mask[:, 30:] = torch.finfo(dtype).min if least is None else least
        close(
            attention(q, k, v, mask, enable_gqa=True), attention(q, k[:, :, :30], v[:, :, :30], enable_gqa=True), 2e-2
        )


def test_a_mask_in_fp32_goes_with_16_bits_as_in_torch():
    q, k, v = (x.bfloat16() for x in qkv())
    mask = (100 * randn(LENGTH, KEYS, seed=7)).requires_grad_()
    out = attention(q, k, v, mask, enable_gqa=True)
    assert out.dtype == torch.bfloat16
    close(out, by_formula([x.double() for x in (q, k, v)], mask.double()), 3e-2)
    assert torch.autograd.grad(out.sum(), mask)[0].dtype == torch.float32


def _blind(value):
    """A mask of numbers of which query 5 has one value alone."""
    return randn(LENGTH, KEYS, seed=7).index_fill(0, torch.tensor([5]), value)


@pytest.mark.parametrize("mask", [bools(LENGTH, KEYS), _blind(-math.inf)], ids=["bools", "numbers"])
def test_a_query_that_sees_nothing_is_0_and_gives_no_gradient(mask):
    tensors = [x.requires_grad_() for x in qkv()]
    out, lse = masked_attention(*tensors, mask, enable_gqa=True)
    assert not out[:, :, 5].any() and (lse[:, :, 5] == -math.inf).all() and lse[:, :, 6:].isfinite().all()
    gradients = torch.autograd.grad((out, lse), tensors, (torch.ones_like(out), torch.ones_like(lse)))
    assert all(x.isfinite().all() for x in gradients) and not gradients[0][:, :, 5].any()


def test_a_query_of_the_least_numbers_alone_weighs_all_keys_alike_as_in_torch():
    q, k, v = (x.requires_grad_() for x in qkv())
    out = attention(q, k, v, _blind(torch.finfo(torch.float32).min), enable_gqa=True)
    close(out[:, :, 5], v.repeat_interleave(2, 1).mean(2))
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), (q, k, v)))


WINDOWS = [(5, 0), (0, 0), (None, 3), (3, None), (70, 70), (-1, 0), (20, 90)]


@pytest.mark.parametrize(("length", "s"), [(130, 100), (70, 150)])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_window_hides_what_lies_outside(window, length, s):
    plain = tuple(None if reach == -1 else reach for reach in window)
    tensors = [x.requires_grad_() for x in qkv(1, 2, 1, length, s)]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    out, expected = attention(*tensors, enable_gqa=True, window=window), by_formula(exact, window=plain)
    close(out, expected)
    dout = randn(*out.shape, seed=3)
    for pair in zip(
        torch.autograd.grad(out, tensors, dout), torch.autograd.grad(expected, exact, dout.double()), strict=True
    ):
        close(*pair)


@pytest.mark.parametrize("mask", [bools(LENGTH, KEYS), randn(LENGTH, KEYS, seed=7)], ids=["bools", "numbers"])
def test_a_mask_goes_with_a_window(mask):
    against_torch(qkv(), mask, (9, 4))


def test_a_window_that_hides_nothing_more_is_what_goes_without(monkeypatch):
    tensors = qkv()
    whole, causal = attention(*tensors, enable_gqa=True), attention(*tensors, is_causal=True, enable_gqa=True)
    monkeypatch.setattr(kernels.attention_masked, "attend", None)  # other kernels
    for window in ((None, None), (LENGTH - 1, KEYS - 1), (-1, 1000)):
        assert torch.equal(attention(*tensors, enable_gqa=True, window=window), whole)
    assert torch.equal(attention(*tensors, enable_gqa=True, window=(1000, 0)), causal)
    assert torch.equal(with_lse(*tensors, True, enable_gqa=True, window=(None, 5))[0], causal)


@pytest.mark.parametrize("window", [(6, 0), (4, 3), (None, 2), (2, None)], ids=str)
def test_windows_of_packed_sequences_are_aligned_to_their_ends(window):
    queries, keys = [3, 20, 0, 7], [5, 20, 4, 40]
    q, k, v = randn(30, 2, 16), randn(69, 1, 16, seed=1), randn(69, 1, 16, seed=2)
    cu_q, cu_k = (torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (queries, keys))
    leaves, exact = ([x.to(dtype).requires_grad_() for x in (q, k, v)] for dtype in (torch.float32, torch.float64))
    out, lse = varlen(*leaves, cu_q, cu_k, 20, 40, window=window)
    expected = []
    for n in range(4):
        one = [
            x[ends[n] : ends[n + 1]].transpose(0, 1)[None] for x, ends in zip(exact, (cu_q, cu_k, cu_k), strict=True)
        ]
        shift = keys[n] - queries[n]
        left, right = (0 if reach is None else reach + 1 for reach in window)
        seen = seen_through(queries[n] + shift, keys[n], left, right, "cpu")[shift:]
        with sdpa_kernel(SDPBackend.MATH):
            found = functional.scaled_dot_product_attention(*one, seen, enable_gqa=True)
        expected.append(found[0].transpose(0, 1))
    expected = torch.cat(expected)
    close(out, expected)
    assert lse.isfinite().all()
    dout = randn(*out.shape, seed=3)
    for pair in zip(
        torch.autograd.grad(out, leaves, dout), torch.autograd.grad(expected, exact, dout.double()), strict=True
    ):
        close(*pair)


def test_masks_of_nothing_and_heads_of_nothing():
    for sizes in ({"s": 0}, {"length": 0}):
        tensors = [x.requires_grad_() for x in qkv(**sizes)]
        mask = torch.zeros(tensors[0].shape[2], tensors[1].shape[2], requires_grad=True)
        out, lse = masked_attention(*tensors, mask, enable_gqa=True)
        assert not out.any() and (lse == -math.inf).all()
        assert not any(x.any() for x in torch.autograd.grad(out.sum(), [*tensors, mask]))
    out, lse = masked_attention(*qkv(d=0), randn(LENGTH, KEYS, seed=7), enable_gqa=True)
    assert out.shape == (2, 4, LENGTH, 0)
    close(lse, randn(LENGTH, KEYS, seed=7).logsumexp(-1).expand(lse.shape))


@pytest.mark.parametrize("scale", [-0.5, 0.0, 0.7])
def test_any_scale_is_that_of_torch_under_a_mask(scale):
    tensors, mask = qkv(), randn(LENGTH, KEYS, seed=7)
    expected = functional.scaled_dot_product_attention(
        *(x.double() for x in tensors), mask.double(), scale=scale, enable_gqa=True
    )
    close(attention(*tensors, mask, scale=scale, enable_gqa=True), expected)


@pytest.mark.parametrize("shape", [(LENGTH, KEYS), (2, 1, 1, KEYS)], ids=str)
def test_a_mask_of_a_module_compiles_for_lengths_that_are_not_known(shape):
    model = torch.nn.Module()  # whose buffers have known sizes, where those of the inputs are not known
    model.mask = torch.nn.Buffer(bools(*shape))
    model.forward = lambda *heads: masked_attention(*heads, model.mask, enable_gqa=True)[0]
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*qkv()), model.forward(*qkv()))


@pytest.mark.parametrize("mask", [bools(6, 7), randn(6, 7, seed=7)], ids=["bools", "numbers"])
def test_it_compiles_into_one_graph(mask, imports_as_before_2_13):
    tensors = [x.requires_grad_() for x in qkv(1, 2, 1, 6, 7)]
    mask.requires_grad_(mask.is_floating_point())
    leaves = [x for x in (*tensors, mask) if x.requires_grad]

    def function(*given):
        return attention(*given, enable_gqa=True, window=(3, 2))

    out = torch.compile(function, fullgraph=True, backend="aot_eager")(*tensors, mask)
    expected = function(*tensors, mask)
    assert torch.equal(out, expected)
    dout = randn(*out.shape, seed=3)
    pairs = zip(torch.autograd.grad(out, leaves, dout), torch.autograd.grad(expected, leaves, dout), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_the_operator_keeps_torch_s_rules():
    tensors = [x.requires_grad_() for x in qkv(1, 1, 1, 5, 5)]
    mask = randn(1, 1, 5, 5, seed=7).requires_grad_()
    torch.library.opcheck(masked_operator.operator.op, (*tensors, mask, 0.25, 3, 1))


def test_autocast_takes_the_mask_along_as_torch_does():
    q, k, v = qkv()
    mask = randn(LENGTH, KEYS, seed=7).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = (
            f(q, k, v, mask, enable_gqa=True) for f in (attention, functional.scaled_dot_product_attention)
        )
    assert out.dtype == expected.dtype
    close(out, expected, 3e-2)
    assert torch.autograd.grad(out.sum(), mask)[0].dtype == torch.float32


def test_second_derivatives_are_refused_of_a_mask_too():
    q, k, v = qkv(1, 1, 1, 3, 3)
    mask = randn(3, 3, seed=7).requires_grad_()
    (dmask,) = torch.autograd.grad(attention(q.requires_grad_(), k, v, mask).sum(), mask, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        torch.autograd.grad(dmask.sum(), q)


def test_the_module_takes_masks_and_windows():
    torch.manual_seed(0)
    x, padding = randn(2, 9, 32), torch.ones(2, 1, 1, 9, dtype=torch.bool)
    padding[1, ..., 6:] = False
    for causal, window in ((True, None), (False, None), (True, (3, None)), (False, (2, 2))):
        module = SelfAttention(32, num_heads=2, num_kv_heads=1, is_causal=causal, window=window)
        assert f"is_causal={causal}" in repr(module) and ("window" in repr(module)) == (window is not None)
        q, k, v = module.in_proj(x).split((32, 16, 16), dim=-1)
        q, k, v = (y.unflatten(-1, (-1, 16)).transpose(1, 2) for y in (q, k, v))
        left, right = window or (None, None)
        for mask in (None, padding):
            limits = (left, 0 if causal else right)
            expected = by_formula((q, k, v), mask, limits if limits != (None, None) else None)
            close(module(x, attn_mask=mask), module.out_proj(expected.transpose(1, 2).flatten(2)))


def test_few_keys_are_right_in_a_block_that_is_too_small_for_them():
    """A certificate tries a config where it may not fit; this one left the keys beyond its block out."""
    q, k, v = (x.half() for x in qkv(1, 2, 1, 70, 75))
    mask, dout = randn(1, 2, 70, 75, seed=7).half(), randn(*q.shape, seed=3).half()
    given = q, k, v, mask, *masked_operator(q, k, v, mask, 0.25, 0, 0), dout, None, 0.25, 0, 0
    small, whole = (
        few_keys.launch_few_keys(*given, config={"BLOCK_N": columns, "num_warps": 8, "num_stages": 2})
        for columns in (64, 128)
    )
    assert all(map(torch.equal, small, whole))
