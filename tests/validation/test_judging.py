"""Tolerances and masks, judged on tensors made for the purpose."""

import math

import pytest
import torch
from atlas.validation import judge, judging

RTOL = {"fp32": 1.3e-6, "fp16": 1e-3, "bf16": 1.6e-2}
"""As in docs/measuring.md, not as in the code that is judged here."""

GENERATOR = torch.Generator().manual_seed(7)


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=GENERATOR)


def judge_one(output, expected, torchs=None, dtype="fp32", reduction=1):
    return judge([output], [expected], None if torchs is None else [torchs], ["out"], dtype, reduction)


@pytest.mark.parametrize(
    ("dtype", "kind"), [("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)]
)
def test_rounding_to_the_dtype_passes_and_twice_the_tolerance_does_not(dtype, kind):
    expected = randn(64, 64)
    rounded = expected.to(kind)
    assert judge_one(rounded, expected, rounded, dtype).reason == ""
    # Twice what rtol allows at the largest element, plus atol many times over: no reading of the formula allows it.
    assert "x the tolerance" in judge_one((expected * (1 + 8 * RTOL[dtype])).to(kind), expected, None, dtype).reason


def test_a_longer_reduction_widens_the_absolute_tolerance_by_its_square_root():
    expected = randn(64, 64)
    short = judge_one(expected.float(), expected, reduction=1).atol
    long = judge_one(expected.float(), expected, reduction=10_000).atol
    # (4 u + (3 + 0.37 ln N) sqrt(K) u32) rms with u = u32 in fp32.
    factor = 3 + 0.37 * math.log(64 * 64)
    assert math.isclose(long / short, (4 + 100 * factor) / (4 + factor), rel_tol=1e-6)


def test_an_error_inside_the_tolerance_is_wrong_where_torch_does_much_better():
    expected = 1 + 0.1 * randn(64, 64).abs()
    # fp16: two units in the last place pass rtol and atol together, and are four times what rounding costs torch.
    worse = (expected * (1 + 2 * 2**-10)).half()
    judgement = judge_one(worse, expected, expected.half(), "fp16")
    assert judgement.tolerance_used < 1
    assert judgement.error_over_torch > 2
    assert "that of torch" in judgement.reason


@pytest.mark.parametrize(("factor", "right"), [(1.9, True), (2.1, False)])
def test_twice_torch_s_error_is_the_limit(factor, right):
    # Torch's error is 1/4 of the tolerance and far more than one rounding of the largest output.
    expected = torch.ones(64, dtype=torch.float64)
    torchs, output = expected.clone(), expected.clone()
    torchs[5] += 1e-2
    output[7] += factor * 1e-2
    judgement = judge_one(output.float(), expected, torchs.float(), "bf16")
    assert (judgement.reason == "") is right
    assert judgement.tolerance_used < 1 and judgement.error_over_torch == pytest.approx(factor, rel=1e-3)


@pytest.mark.parametrize("given", [0, 1], ids=["none", "the first alone"])
def test_an_output_that_is_missing_is_wrong(given):
    expected = [randn(4), randn(2)]
    found = judge([e.float() for e in expected[:given]], expected, None, ["y", "mean"], "fp32", 1)
    assert f"{given} output(s) where the reference has 2" in found.reason and found.tolerance_used == math.inf


def test_an_output_more_than_the_reference_has_is_not_judged():
    expected = [randn(4)]
    assert judge([expected[0].float(), randn(3).float()], expected, None, ["y", "scratch"], "fp32", 1).reason == ""


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("how", ["far off", "NaN", "worse than torch"])
def test_one_wrong_output_makes_the_whole_wrong_whichever_it_is(bad, how):
    # The right ones use most of their tolerance, which must not hide one that is wrong beside torch, or a NaN.
    expected = [torch.ones(8, dtype=torch.float64) for _ in range(3)]
    outputs, torchs = [e.half() for e in expected], None
    for output in outputs:
        output[0] += 3 * 2**-10  # 0.99 of the tolerance
    outputs[bad] = expected[bad].half()
    if how == "worse than torch":
        torchs = [output.clone() for output in outputs]
        outputs[bad][3] += 3 * 2**-10
    else:
        outputs[bad][3] = math.nan if how == "NaN" else 2.0
    found = judge(outputs, expected, torchs, ["a", "b", "c"], "fp16", 1)
    assert f"{'abc'[bad]}[3] is" in found.reason


def test_the_slack_of_one_output_is_not_another_s():
    expected = [torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)]
    off = [torch.full((4,), 0.5), torch.zeros(4)]
    names = ["y", "mean"]
    assert judge(off, expected, None, names, "fp32", 1, slack=[1.0, 0.0]).reason == ""
    assert "y[0]" in judge(off, expected, None, names, "fp32", 1, slack=[0.0, 1.0]).reason
    assert "mean[0]" in judge(off[::-1], expected, None, names, "fp32", 1, slack=[1.0, 0.0]).reason


def test_the_scale_of_an_output_is_that_of_its_finite_elements():
    expected = torch.tensor([3.0, -3.0, math.inf, math.nan], dtype=torch.float64)
    assert judging.scale(expected) == (3.0, 3.0)
    assert judging.scale(torch.tensor([math.inf])) == judging.scale(torch.empty(0)) == (0.0, 0.0)


def test_the_scale_of_an_output_is_the_same_taken_in_pieces(monkeypatch):
    expected = torch.arange(20, dtype=torch.float64)
    whole = judging.scale(expected)
    monkeypatch.setattr(judging, "_CHUNK", 7)
    assert judging.scale(expected) == pytest.approx(whole) and whole[1] == 19.0


def test_one_unit_in_the_last_place_is_right_where_torch_is_exact_by_luck():
    expected = torch.tensor([1.0, 1.5, 2.0], dtype=torch.float64)
    off = torch.nextafter(expected.half(), torch.tensor(9.0).half())
    judgement = judge_one(off, expected, expected.half(), "fp16")
    assert judgement.reason == ""
    assert judgement.error_over_torch is not None


def test_where_torch_misses_the_tolerance_itself_twice_its_error_is_the_limit():
    expected = randn(64, 64)
    torchs = expected.float() + 1e-3
    assert judge_one(expected.float() + 1.5e-3, expected, torchs).reason == ""
    assert judge_one(expected.float() + 3e-3, expected, torchs).reason != ""


@pytest.mark.parametrize(
    ("got", "wanted"),
    [(math.nan, 1.0), (1.0, math.nan), (math.inf, -math.inf), (math.inf, 1.0), (2.0, math.inf), (math.nan, math.inf)],
)
def test_nan_and_infinities_must_stand_where_the_reference_has_them(got, wanted):
    expected, output = randn(4, 5), None
    expected[2, 3] = wanted
    output = expected.float()
    output[2, 3] = got
    reason = judge_one(output, expected).reason
    assert "NaN or infinity differs in 1 of 20 elements" in reason
    assert "out[2, 3]" in reason


def test_a_value_past_the_range_of_the_dtype_is_to_be_infinite():
    expected = torch.tensor([1e5, -1e5, 1.0], dtype=torch.float64)
    assert judge_one(torch.tensor([math.inf, -math.inf, 1.0]).half(), expected, dtype="fp16").reason == ""
    assert judge_one(torch.tensor([65504.0, -math.inf, 1.0]).half(), expected, dtype="fp16").reason != ""


def test_a_value_at_the_end_of_the_range_may_round_either_way():
    expected = torch.tensor([65519.0, 65521.0], dtype=torch.float64)
    assert judge_one(torch.tensor([math.inf, 65504.0]).half(), expected, dtype="fp16").reason == ""


def test_nan_where_torch_has_it_too_is_accepted():
    expected = torch.tensor([1.0, 2.0], dtype=torch.float64)
    both = torch.tensor([math.nan, 2.0])
    assert judge_one(both, expected, both).reason == ""


@pytest.mark.parametrize("results", [1, 0], ids=["result", "statistic"])
def test_what_rounds_to_the_largest_number_is_no_infinity(results):
    # 65517.5 is over the largest fp16, 65504, and rounds to it: infinity begins at 65520.
    expected = torch.full((16,), 65517.5, dtype=torch.float64)
    largest = torch.full((16,), 65504.0, dtype=torch.float16)
    assert judge((largest,), (expected,), None, ["y"], "fp16", 2, results=results).reason == ""
    far = torch.full((16,), 1e6, dtype=torch.float64)
    assert "infinity differs" in judge((largest,), (far,), None, ["y"], "fp16", 2, results=results).reason


def test_saved_statistics_may_have_nan_for_infinity_but_not_for_a_number():
    expected = [randn(4), torch.tensor([math.nan, 1.0], dtype=torch.float64)]
    fine = [expected[0].float(), torch.tensor([-math.inf, 1.0])]
    wrong = [expected[0].float(), torch.tensor([-math.inf, math.nan])]
    names = ["y", "mean"]
    assert judge(fine, expected, None, names, "fp32", 1, results=1).reason == ""
    assert "mean[1] is nan" in judge(wrong, expected, None, names, "fp32", 1, results=1).reason
    assert "mean[0] is -inf" in judge(fine, expected, None, names, "fp32", 1).reason


def test_integers_are_compared_exactly():
    expected = torch.arange(10)
    assert judge_one(expected.clone(), expected, dtype="int32").reason == ""
    assert judge_one(expected + (expected == 3), expected, dtype="int32").reason != ""


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda out: out[:, 60:].fill_(0), "the tail, the last 4 of 64 columns of every row, from 60 on"),
        (lambda out: out[::4].fill_(0), "every 4th row, from 0 on"),
        (lambda out: out[10:12].fill_(0), "rows 10 to 11"),
        (lambda out: out.mul_(3), "the result is 3 times what is expected"),
        (lambda out: out.copy_(out.t().clone()), "the result is the transpose of what is expected"),
        (lambda out: out.zero_(), "the result is zero"),
        (lambda out: out.add_(2), "the result is shifted by 2"),
        (lambda out: out.view(-1)[-9:].fill_(0), "row 63, in part"),
    ],
)
def test_a_recognisable_pattern_is_named(spoil, words):
    expected = randn(64, 64)
    output = expected.float()
    spoil(output)
    assert words in judge_one(output, expected).reason


def test_first_wrong_elements_come_with_index_expected_and_got():
    expected = torch.ones(3, 4, dtype=torch.float64)
    output = torch.ones(3, 4)
    output[1, 2] = 5
    assert "out[1, 2] is 5, expected 1" in judge_one(output, expected).reason


def test_subnormal_fp16_results_pass_when_rounded_to_the_nearest():
    # softmax over 262144 columns: outputs of 4e-6 lie between multiples of 6e-8
    expected = (1 + 0.1 * randn(1000).abs()) * 4e-6
    assert judge_one(expected.half(), expected, expected.half(), "fp16").reason == ""


def spread_out(dtype="fp8e4m3", kind=torch.bfloat16):
    """An output of 0, for which torch knows nothing, and spreads of 1 of which one is 100."""
    expected, spread = torch.zeros(8, 8, dtype=torch.float64), torch.ones(8, 8, dtype=torch.float64)
    spread[5, 2] = 100.0

    def judged(error, torchs=None, spreads=(spread,), slack=()):
        output = torch.zeros(8, 8, dtype=kind)
        for at, much in error.items():
            output[at] = much
        yardstick = None if torchs is None else [torchs]
        return judge([output], [expected], yardstick, ["out"], dtype, 1, slack=slack, spreads=spreads)

    return judged, spread


@pytest.mark.parametrize("chunk", [2**24, 7])
def test_what_roundings_may_do_is_measured_by_an_element_s_own_spread(monkeypatch, chunk):
    monkeypatch.setattr(judging, "_CHUNK", chunk)
    judged, _ = spread_out()
    right = judged({(5, 2): 24.9, (5, 3): 0.249})
    assert not right.reason and 0.99 < right.tolerance_used < 1
    # 4 u = 0.25 in e4m3; reported is the tolerance at the root mean square.
    assert math.isclose(right.atol, 0.25 * math.sqrt((63 + 1e4) / 64), rel_tol=1e-6)
    wrong = judged({(5, 2): 24.9, (5, 3): 0.26})
    assert "x the tolerance in 1 of 64 elements" in wrong.reason and "out[5, 3]" in wrong.reason
    assert not judged({(5, 3): 0.26}, slack=[0.02]).reason
    assert "out[5, 2]" in judged({(5, 2): 25.1}).reason


def test_beside_a_spread_the_output_s_dtype_alone_says_what_an_element_may_be_off_by_in_proportion():
    expected, none = torch.full((4,), 10.0, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    off = (expected * 1.03).bfloat16()  # twice bf16's tolerance, a quarter of e4m3's
    assert not judge([off], [expected], None, ["out"], "fp8e4m3", 1).reason
    assert judge([off], [expected], None, ["out"], "fp8e4m3", 1, spreads=[none]).reason


def test_an_exact_torch_does_not_forbid_what_the_spread_allows():
    judged, _ = spread_out()
    assert not judged({(5, 2): 24.9}, torchs=torch.zeros(8, 8)).reason
    assert "x the tolerance" in judged({(5, 3): 0.26}, torchs=torch.zeros(8, 8)).reason


def test_an_output_without_a_spread_and_an_element_whose_spread_is_no_number_go_by_the_root_mean_square():
    judged, spread = spread_out()
    assert judged({(5, 2): 0.1}, spreads=(None,)).reason and judged({(5, 2): 0.1}, spreads=()).reason
    spread[5, 2], spread[0, 0] = math.nan, math.inf
    assert "out[5, 2]" in judged({(5, 2): 0.1}).reason
    assert "out[0, 0]" in judged({(0, 0): 0.1}).reason
    assert not judged({(0, 1): 0.1}).reason


def test_integers_have_no_spread():
    expected = torch.arange(10)
    found = judge([expected + 1], [expected], None, ["out"], "fp8e4m3", 1, spreads=[torch.full((10,), 100.0)])
    assert found.reason
