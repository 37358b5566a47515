"""Attention of fp8 heads on the interpreter: values, scales, layouts, refusals; and how Hopper's V is transposed."""

import math

import pytest
import torch
from atlas.benchmarking.judging import Expected
from atlas.declaration import case
from atlas.declaration.hardware import INTERPRETER
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from atlas.validation import judge
from atlas.validation.problems import Problem

from kernels.attention_fp8 import DECLARATION, attention_fp8, hopper_forward, quantise_heads
from kernels.attention_fp8.transposing import transposed

E4M3 = torch.float8_e4m3fn
ONE = torch.ones(())
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", "match" in block)}
WORK = DECLARATION.forward


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def heads(b=1, h=2, g=1, length=20, s=24, d=32):
    """Query, key and value in e4m3."""
    return randn(b, h, length, d).to(E4M3), randn(b, g, s, d, seed=1).to(E4M3), randn(b, g, s, d, seed=2).to(E4M3)


def exact(q, k, v, q_scale=ONE, k_scale=ONE, v_scale=ONE, causal=False, scale=None):
    """(out, lse) in float64."""
    q, k, v = (
        x.double() * by.double().reshape(*by.shape, 1, 1)
        for x, by in ((q, q_scale), (k, k_scale), (v, v_scale))
    )  # fmt: skip
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = (q.shape[-1] ** -0.5 if scale is None else scale) * q @ k.mT
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    return s.softmax(-1) @ v, s.logsumexp(-1)


def assert_close(found, expected):
    """Within a rounding to bf16; the interpreter does not round P."""
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=2**-7, atol=2**-7 * float(y.square().mean().sqrt()))


@pytest.mark.parametrize("causal", [False, True])
def test_each_head_counts_times_its_own_scale(causal):
    q, k, v = heads(b=2, h=4, g=2)
    scales = [0.25 + randn(2, n, seed=n).abs() for n in (4, 2, 2)]
    found = attention_fp8(q, k, v, *scales, is_causal=causal, enable_gqa=True)
    assert_close(found, exact(q, k, v, *scales, causal=causal))


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_one_scale_stands_for_all_heads_and_out_is_of_the_dtype_asked_for(out_dtype):
    q, k, v = heads(b=2, h=2, g=2)
    scales = torch.tensor(0.5), torch.tensor([2.0]), torch.tensor([[[3.0]]])
    out, lse = attention_fp8(q, k, v, *scales, scale=0.1, out_dtype=out_dtype)
    assert (out.dtype, lse.dtype) == (out_dtype, torch.float32)
    assert_close((out, lse), exact(q, k, v, torch.tensor(0.5), torch.tensor(2.0), torch.tensor(3.0), scale=0.1))


def test_out_in_fp32_does_not_go_to_the_kernel_for_hopper_which_has_no_room_for_it(monkeypatch):
    def refused(*others, config):
        raise KeyError("no such block")

    monkeypatch.setattr(hopper_forward, "launch_by_tma", refused)
    q, k, v = heads()
    scales = [torch.ones(x.shape[:2]) for x in (q, k, v)]
    launch = WORK.variant("gluon").launch
    found = launch(q, k, v, scales, False, 0.1, torch.float32, config={})
    assert found[0].dtype == torch.float32
    assert_close(found, exact(q, k, v, scale=0.1))
    with pytest.raises(KeyError):
        launch(q, k, v, scales, False, 0.1, torch.float16, config={})


@pytest.mark.parametrize("length, s, d", [(40, 128, 64), (70, 90, 128), (33, 65, 40)])
@pytest.mark.parametrize("causal", [False, True])
def test_few_keys_have_values_of_fp16_by_descriptors_or_by_pointers(length, s, d, causal):
    """Whole blocks and tails; rows of 40 bytes, which no descriptor describes."""
    q, k, v = heads(b=2, h=4, g=2, length=length, s=s, d=d)
    scales = [0.25 + randn(2, n, seed=n).abs() for n in (4, 2, 2)]
    config = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
    found = WORK.variant("descriptor").launch(q, k, v, scales, causal, d**-0.5, config=config)
    assert_close(found, exact(q, k, v, *scales, causal=causal))


@pytest.mark.parametrize(("s", "d", "name"), [(512, 64, "descriptor"), (1024, 64, "gluon"), (512, 72, "tiled")])
def test_few_keys_want_no_transposed_values_on_hopper(s, d, name):
    problem = case("fp8e4m3", b=16, h=40, g=8, l=s, s=s, d=d, causal=True)
    assert WORK.preferred(problem, GPUS["h200"]).name == name
    assert not WORK.variant(name).fits(WORK.variant(name).default(problem, GPUS["h200"]), problem, GPUS["h200"])


def test_strides_may_be_any():
    q, k, v = heads(b=2, h=4, g=2, length=21, s=24, d=40)
    expected = exact(q, k, v)
    for layout in (
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x.mT.contiguous().mT,
        lambda x: torch.cat([x.view(torch.uint8)] * 2, -1).view(E4M3)[..., : x.shape[-1]],
    ):
        assert_close(attention_fp8(*map(layout, (q, k, v)), ONE, ONE, ONE, enable_gqa=True), expected)


def test_quantise_heads_and_attention_are_near_attention_itself():
    q, k, v = randn(2, 4, 40, 64), randn(2, 2, 50, 64, seed=1) * 30, randn(2, 2, 50, 64, seed=2) + 1
    v[0, 1] = 0.0
    pairs = [quantise_heads(x.to(torch.bfloat16)) for x in (q, k, v)]
    for (values, scale), x in zip(pairs, (q, k, v), strict=True):
        assert values.dtype == E4M3 and scale.shape == x.shape[:2]
        error = (values.float() * scale[..., None, None] - x).abs()
        assert bool((error <= 2**-4 * x.abs() + 2**-8 * x.abs().amax(dim=(2, 3), keepdim=True)).all())
    assert float(pairs[2][1][0, 1]) == 1.0
    (q8, k8, v8), scales = zip(*pairs, strict=True)
    out, _ = attention_fp8(q8, k8, v8, *scales, enable_gqa=True, scale=0.01)
    expected, _ = exact(q, k, v, scale=0.01)
    assert float((out - expected).square().mean().sqrt()) < 0.05 * float(expected.square().mean().sqrt())


def test_nothing_to_look_at():
    q, k, v = heads(h=1, s=0)
    out, lse = attention_fp8(q, k, v, ONE, ONE, ONE)
    assert out.dtype == torch.bfloat16 and not out.any() and bool((lse == -math.inf).all())
    out, lse = attention_fp8(q[:, :, :0], *heads(h=1)[1:], ONE, ONE, ONE)
    assert out.shape == (1, 1, 0, 32) and lse.shape == (1, 1, 0)


def test_heads_of_no_elements_weigh_all_keys_alike():
    out, lse = attention_fp8(*heads(h=1, s=9, d=0), ONE, ONE, ONE, is_causal=True, out_dtype=torch.float16)
    assert out.shape[-1] == 0 and out.dtype == torch.float16
    torch.testing.assert_close(lse[0, 0].exp(), torch.arange(1.0, 21.0).clamp(max=9))


def test_refusals():
    q, k, v = heads()
    for scale in (math.nan, math.inf, -1.0):
        with pytest.raises(ValueError, match="positive and finite"):
            attention_fp8(q, k, v, ONE, ONE, ONE, scale=scale, enable_gqa=True)
    with pytest.raises(TypeError, match="float8_e4m3fn"):
        attention_fp8(q.float(), k, v, ONE, ONE, ONE, enable_gqa=True)
    with pytest.raises(TypeError, match="int8"):
        attention_fp8(q, k, v, ONE, ONE, ONE, enable_gqa=True, out_dtype=torch.int8)
    with pytest.raises(ValueError, match="enable_gqa"):
        attention_fp8(q, k, v, ONE, ONE, ONE)
    with pytest.raises(ValueError, match="key_scale as fp32 on cpu, of one element or \\(1, 1\\)"):
        attention_fp8(q, k, v, ONE, torch.ones(2), ONE, enable_gqa=True)
    with pytest.raises(ValueError, match="positive"):
        attention_fp8(q, k, v, ONE, ONE, ONE, scale=0.0, enable_gqa=True)
    with pytest.raises(ValueError, match="of key and value alike"):
        attention_fp8(q, k, v[:, :, 1:], ONE, ONE, ONE, enable_gqa=True)
    with pytest.raises(NotImplementedError, match="up to 256"):
        attention_fp8(*heads(d=264), ONE, ONE, ONE, enable_gqa=True)
    with pytest.raises(NotImplementedError, match="detach"):
        attention_fp8(q, k, v, ONE.clone().requires_grad_(), ONE, ONE, enable_gqa=True)
    with pytest.raises(TypeError, match="floating"):
        quantise_heads(torch.ones(1, 1, 1, 1, dtype=torch.int8))


@pytest.mark.parametrize("length", [5, 32, 150])
def test_the_transposed_v_holds_keys_as_threads_hold_them(length):
    v = torch.arange(2 * length * 32).remainder(251).to(torch.uint8).view(1, 2, length, 32).view(E4M3)
    out = transposed(v).view(torch.uint8)
    padded = -(-length // 16) * 16
    assert out.shape == (1, 2, 32, padded)
    full = torch.zeros(1, 2, padded, 32, dtype=torch.uint8)
    full[:, :, :length] = v.view(torch.uint8)
    # Of 16 keys the c-th of four threads holds 2 c, 2 c + 1, 8 + 2 c and 9 + 2 c, and is asked for 4 c … 4 c + 3.
    held = [[2 * c, 2 * c + 1, 8 + 2 * c, 9 + 2 * c] for c in range(4)]
    order = torch.tensor([first + key for first in range(0, padded, 16) for thread in held for key in thread])
    assert torch.equal(out, full[:, :, order].mT)


def test_what_follows_where():
    problem = case("fp8e4m3", b=1, h=8, g=8, l=4096, s=4096, d=128, causal=True)
    assert WORK.preferred(problem, GPUS["h200"]).name == "gluon"
    assert WORK.preferred(problem, INTERPRETER).name == "tiled"
    for name in ("t4", "a100"):
        assert WORK.preferred(problem, GPUS[name]) is None
        assert all("fp8" in variant.unsupported(problem, GPUS[name]) for variant in WORK.variants)


def test_every_default_fits():
    for name in ("h100", "h200"):
        for problem in (*DECLARATION.cases(GPUS[name]), *DECLARATION.edge_cases):
            for variant in WORK.variants:
                if not variant.unsupported(problem, GPUS[name]):
                    assert not variant.fits(variant.default(problem, GPUS[name]), problem, GPUS[name]), (
                        variant,
                        problem,
                    )


def test_the_yardstick_is_torch_in_bf16():
    drawn = Problem(DECLARATION, "forward", DECLARATION.edge_cases[3], torch.device("cpu"), seed=0)
    assert drawn.yardstick[0].dtype == torch.bfloat16
    assert not drawn.judge((drawn.yardstick[0], drawn.expected[1])).reason


BLOCK = 64


def simulated(q, k, v, scales, causal, scale, weights=E4M3, fault=""):
    """out [b, h, l, d] in bf16 by the kernel's algorithm with P of ``weights``, as a GPU rounds it; g = h."""
    q_scale, k_scale, v_scale = (x[..., None, None] for x in scales)
    k_scale = k_scale.roll(1, dims=1) if fault == "another head's scale of keys" else k_scale
    q, k, v = q.float(), k.float(), v.float()
    rows, keys = (torch.arange(x.shape[2]) for x in (q, k))
    m = torch.full((*q.shape[:3], 1), -1e30)
    total, acc = torch.zeros_like(m), torch.zeros_like(q)
    for start in range(0, k.shape[2], BLOCK):
        if fault == "a block of keys dropped" and start == 2 * BLOCK:
            continue
        block = slice(start, start + BLOCK)
        s = (q @ k[:, :, block].mT) * (scale / math.log(2) * q_scale * k_scale)
        if causal:
            s = s.masked_fill(keys[block] > rows[:, None], -math.inf)
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, alpha = torch.exp2(s - (m_new - 8)), torch.exp2(m - m_new)
        total = total * alpha + p.sum(-1, keepdim=True)
        acc = (acc if fault == "earlier blocks not scaled down" else acc * alpha) + p.to(weights).float() @ v[
            :, :, block
        ]
        m = m_new
    return (acc / total * v_scale).to(torch.bfloat16)


@pytest.fixture(scope="module", params=[False, True], ids=["full", "causal"])
def sizeable(request):
    """A problem of 1024 queries and keys."""
    sized = case("fp8e4m3", b=1, h=2, g=2, l=1024, s=1024, d=64, causal=request.param)
    return Problem(DECLARATION, "forward", sized, torch.device("cpu"), seed=0)


def judged(problem, **how):
    return problem.judge((simulated(**problem.inputs, **how), problem.expected[1]))


def test_weights_rounded_to_e4m3_are_right_and_those_of_e5m2_twice_as_far_off(sizeable):
    found = judged(sizeable)
    assert not found.reason and found.tolerance_used < 0.6
    assert judged(sizeable, weights=torch.float8_e5m2).tolerance_used > 1.5 * found.tolerance_used


def test_rows_of_few_keys_are_out_of_the_common_run_by_the_root_mean_square_of_all(sizeable):
    out, expected = simulated(**sizeable.inputs), sizeable.expected[0]
    by_rms = judge((out,), (expected,), None, ["out"], "fp8e4m3", 1024)
    if sizeable.case["causal"]:
        assert by_rms.tolerance_used > 1.5 * judged(sizeable).tolerance_used


def test_a_tenth_too_much_in_one_head_is_found(sizeable):
    out = simulated(**sizeable.inputs)
    out[:, 1] *= 1.1
    assert "out[0, 1" in sizeable.judge((out, sizeable.expected[1])).reason


@pytest.mark.parametrize(
    "fault", ["a block of keys dropped", "another head's scale of keys", "earlier blocks not scaled down"]
)
def test_what_a_wrong_kernel_gives_is_found_in_out_alone(sizeable, fault):
    found = judged(sizeable, fault=fault)
    assert "out is" in found.reason or "out[" in found.reason
    assert found.tolerance_used > 2


def test_what_is_timed_is_checked_by_the_spread_too(sizeable):
    check, lse = Expected(sizeable), sizeable.expected[1]
    assert not check.variant((simulated(**sizeable.inputs), lse))
    assert not check.peer((sizeable.yardstick[0],))
    out = simulated(**sizeable.inputs) * 1.1  # within e4m3's own tolerance of the element
    assert "x the tolerance" in check.variant((out, lse)) and "x the tolerance" in check.peer((out,))


def test_the_spread_is_of_the_terms_that_are_rounded():
    q, k, v = (x.double() for x in heads(b=2, h=4, g=2, length=7, s=9))
    scales = [0.25 + randn(2, n, seed=n).abs() for n in (4, 2, 2)]
    out, lse = WORK.spread(q, k, v, scales, True, 0.2)
    p, _ = exact(q, k, torch.eye(9).expand(2, 2, 9, 9), *scales[:2], causal=True, scale=0.2)
    terms = p[..., None] * (v * scales[2][..., None, None]).repeat_interleave(2, 1)[:, :, None]
    torch.testing.assert_close(out, terms.square().sum(-2).sqrt())
    assert lse is None
    assert WORK.spread(q, k[:, :, :0], v[:, :, :0], scales, False, 0.2)[0].shape == q.shape


def test_weights_too_small_for_a_normal_number_count_as_the_least_one():
    q, k = torch.ones(1, 1, 1, 2).double(), torch.tensor([[0.0, 0.0], [-100.0, 0.0]]).double()[None, None]
    v, one = torch.tensor([[0.0, 3.0], [5.0, 4.0]]).double()[None, None], torch.ones(1, 1)
    out, _ = WORK.spread(q, k, v, (one, one, one), False, 0.2)
    torch.testing.assert_close(out.flatten(), torch.tensor([5 * 2.0**-14, 3.0]).double())


def test_three_groups_are_for_long_loops_whose_tiles_fill_the_last_turn():
    gluon, config = WORK.variant("gluon"), {"CONSUMERS": 3, "STAGES": 4, "PINGPONG": False}
    for b, h, length, default, fits in (
        (1, 32, 16384, 3, True),  # 21 turns of 192 queries, 32 of 128
        (16, 12, 494, 2, False),  # 5 turns of 192, 6 of 128
        (1, 2, 200, 2, True),  # one turn of either
    ):
        problem = case("fp8e4m3", b=b, h=h, g=h, l=length, s=length, d=64, causal=False)
        assert gluon.default(problem, GPUS["h200"])["CONSUMERS"] == default
        assert (not gluon.fits(config, problem, GPUS["h200"])) is fits


@pytest.mark.parametrize(
    ("h", "length", "d", "causal", "chosen", "rows"),
    [
        (40, 512, 64, True, "descriptor", 64),
        (40, 1024, 64, True, "gluon", None),
        (32, 256, 128, False, "descriptor", 128),
        (32, 256, 128, True, "descriptor", 64),  # of the diagonal larger blocks compute more
        (4, 256, 128, False, "descriptor", 64),  # 128 blocks of 128 queries for 132 SMs
        (32, 640, 128, True, "gluon", None),
        (16, 512, 96, True, "descriptor", 64),  # heads that gluon has not
        (16, 2048, 96, True, "descriptor", 128),  # a diagonal of few of the keys
        (16, 128, 256, False, "descriptor", 128),
        (16, 256, 256, False, "gluon", None),
    ],
)
def test_descriptors_are_for_few_keys_and_for_heads_that_gluon_has_not(h, length, d, causal, chosen, rows):
    problem = case("fp8e4m3", b=16, h=h, g=h, l=length, s=length, d=d, causal=causal)
    variant = WORK.preferred(problem, GPUS["h200"])
    config = variant.default(problem, GPUS["h200"])
    assert (variant.name, config.get("BLOCK_M")) == (chosen, rows)
    assert config in list(variant.configs(problem, GPUS["h200"]))


def test_narrow_heads_take_128_keys_at_a_time_where_neither_a_tail_nor_a_diagonal_is_longer_for_it():
    for length, causal, keys in ((512, False, 128), (560, False, 64), (128, False, 64), (512, True, 64)):
        problem = case("fp8e4m3", b=16, h=16, g=16, l=length, s=length, d=64, causal=causal)
        assert WORK.variant("descriptor").default(problem, GPUS["h200"])["BLOCK_N"] == keys
