"""Softmax on the interpreter: values, special values, dimensions, masks, gradients, refusals; under torch.compile."""

import pytest
import torch
from atlas.declaration import case
from atlas.declaration.hardware import INTERPRETER
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from atlas.validation.problems import Problem
from defaults_under_test import assert_defaults_fit

from kernels.softmax import DECLARATION, forward, log_softmax, softmax

CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", "match" in block)}
VARIANTS = [(direction, v) for direction, work in DECLARATION.passes.items() for v in work.variants]
IDS = [f"{direction}-{v.name}" for direction, v in VARIANTS]
FORWARD = [v for v in DECLARATION.forward.variants if not v.needs]
"""Those that the interpreter runs; of ``clustered`` see ``tests/gpu/test_clustered_rows.py``."""


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(found, expected, dtype=torch.float32):
    """By twice the unit roundoff of the dtype: the interpreter truncates where GPUs round to bf16."""
    tolerance = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance * 0.05, equal_nan=True)


@pytest.mark.parametrize(("direction", "variant"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("problem", [c for c in DECLARATION.edge_cases if c.dtype == "fp16"], ids=str)
def test_edge_cases_agree_with_float64(problem, direction, variant):  # of the other dtypes: validation
    if variant.unsupported(problem, INTERPRETER):
        pytest.skip(variant.unsupported(problem, INTERPRETER))
    drawn = Problem(DECLARATION, direction, problem, CPU, seed=1)
    assert not drawn.judge(variant.launch(**drawn.inputs, config=variant.default(problem, INTERPRETER))).reason


@pytest.mark.parametrize(("direction", "variant"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("n", [72, 4104], ids=["short", "tail"])  # rows of whole vectors; the longer has a tail block
def test_every_config_gives_the_same_rows(direction, variant, n):
    problem = case("fp16", m=6, n=n)
    if variant.unsupported(problem, INTERPRETER):
        pytest.skip(variant.unsupported(problem, INTERPRETER))
    drawn = Problem(DECLARATION, direction, problem, CPU, seed=2)
    # the interpreter knows neither warps nor stages
    configs = {str(c | {"num_warps": 0, "num_stages": 0}): c for c in variant.configs(problem, INTERPRETER)}
    assert configs
    for config in configs.values():
        assert not drawn.judge(variant.launch(**drawn.inputs, config=config)).reason, config


def test_rows_shared_by_programs_come_out_as_those_of_one():
    # 2051 columns in blocks of 512: shares of unequal length, rows that begin off 16 bytes; (4, 1): a loop over rows
    drawn = Problem(DECLARATION, "backward", case("fp16", m=3, n=2051), CPU, seed=3)
    variant = DECLARATION.backward.variant("stream")
    for splits, programs in ((1, 0), (2, 1), (2, 0), (1, 1), (4, 1)):
        config = {"BLOCK_N": 512, "num_warps": 1, "SPLITS": splits, "PROGRAMS_PER_SM": programs}
        assert not drawn.judge(variant.launch(**drawn.inputs, config=config)).reason, config


@pytest.mark.parametrize(
    "problem",
    [
        case("fp32", m=2, n=2**15),  # whole tiles
        case("fp32", m=2, n=20_000),  # a tail, and tiles beyond it
        case("bf16", m=2, n=40_000),
        case("fp32", log=True, m=2, n=20_000),
        case("fp32", causal=True, q=2, m=4, n=20_000),
    ],
    ids=str,
)
def test_rows_of_which_dy_alone_fits_registers_agree_with_float64(problem):
    variant = DECLARATION.backward.variant("held")
    assert not variant.unsupported(problem, GPUS["h200"])
    drawn = Problem(DECLARATION, "backward", problem, CPU, seed=4)
    for chunks in (4, 8):
        config = {"CHUNKS": chunks, "num_warps": 32}
        assert not drawn.judge(variant.launch(**drawn.inputs, config=config)).reason, config


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "logarithm"])
@pytest.mark.parametrize("variant", FORWARD, ids=lambda v: v.name)
@pytest.mark.parametrize("n", [33, 2100], ids=["one block", "two blocks"])
def test_nan_and_infinities_spread_as_in_torch(variant, n, log):
    x = randn(8, n)
    x[0, 3] = float("nan")
    x[1, 5] = float("inf")
    x[2, :] = float("-inf")  # no finite value: NaN
    x[3, :-1] = float("-inf")  # a running maximum that stays at -inf until the last element
    x[4, 1:] = float("-inf")
    x[5] = torch.finfo(torch.float32).min  # the value a running maximum starts from
    x[6, 7] = 3e38
    y = variant.launch(x, log=log, config=variant.default(case("fp32", m=8, n=n), INTERPRETER))
    assert_close(y, (torch.log_softmax if log else torch.softmax)(x.double(), -1))


@pytest.mark.parametrize("variant", FORWARD, ids=lambda v: v.name)
def test_large_inputs_lose_no_accuracy_to_a_scaled_exponent(variant):
    # x * log2(e) - max * log2(e) would be off by half an ulp of 1e4, 3e-4 in the result.
    x = randn(4, 500) + 1e4
    y = variant.launch(x, config=variant.default(case("fp32", m=4, n=500), INTERPRETER))
    assert_close(y, torch.softmax(x.double(), -1))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((5, 7), 0), ((3, 4, 6), 1), ((2, 3, 5), -3), ((2, 3, 4, 5), -2), ((9,), 0), ((), 0), ((), -1)],
    ids=str,
)
def test_any_dimension_is_normalised(shape, dim, dtype):
    x = randn(*shape, dtype=dtype)
    y = softmax(x, dim)
    assert y.is_contiguous()
    assert_close(y, torch.softmax(x.double(), dim), dtype)


def test_layouts_that_are_not_contiguous_are_read_through_their_strides():
    base = randn(40, 30)
    for x in (base.t(), base[:, ::2], base[3:, 5:17], base[:1].expand(8, 30)):
        assert_close(softmax(x), torch.softmax(x.double(), -1))


def test_a_dtype_is_cast_to_before_the_sum_as_torch_does():
    x = randn(3, 40, dtype=torch.bfloat16)
    assert_close(softmax(x, dtype=torch.float32), torch.softmax(x.double(), -1))
    whole = torch.arange(12).view(3, 4)
    assert_close(softmax(whole, 0, torch.float32), torch.softmax(whole.double(), 0))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (4, 0), (2, 0, 3)], ids=str)
def test_empty_input_gives_empty_output(shape):
    assert torch.equal(softmax(torch.empty(shape)), torch.softmax(torch.empty(shape), -1))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize(("shape", "dim"), [((4, 33), -1), ((3, 20, 5), 1), ((2, 2100), -1)], ids=str)
def test_gradients_agree_with_float64_autograd(shape, dim, dtype):
    x, dy = randn(*shape, dtype=dtype).requires_grad_(), randn(*shape, dtype=dtype, seed=1)
    exact = x.detach().double().requires_grad_()
    torch.softmax(exact, dim).backward(dy.double())
    softmax(x, dim).backward(dy)
    assert_close(x.grad, exact.grad, dtype)


def test_gradients_pass_through_the_cast():
    x, dy = randn(4, 10, dtype=torch.float16).requires_grad_(), randn(4, 10)
    exact = x.detach().double().requires_grad_()
    torch.softmax(exact, -1).backward(dy.double())
    softmax(x, dtype=torch.float32).backward(dy)
    assert_close(x.grad, exact.grad, torch.float16)


def test_second_derivatives_agree_with_float64_autograd():
    x, dy, v = randn(2, 9), randn(2, 9, seed=1), randn(2, 9, seed=2)

    def second(function, x, dy, v):
        x = x.requires_grad_()
        (first,) = torch.autograd.grad(function(x), x, dy, create_graph=True)
        return torch.autograd.grad(first, x, v)[0]

    expected = second(lambda x: torch.softmax(x, -1), x.double(), dy.double(), v.double())
    assert_close(second(softmax, x, dy, v), expected)


@pytest.mark.parametrize(("shape", "dim"), [((4, 33), -1), ((3, 20, 5), 1), ((2, 2100), -1), ((), 0)], ids=str)
def test_the_logarithm_and_its_gradient_agree_with_float64(shape, dim):
    x, dy = randn(*shape).requires_grad_(), randn(*shape, seed=1)
    exact = x.detach().double().requires_grad_()
    expected = torch.log_softmax(exact, dim)
    expected.backward(dy.double())
    y = log_softmax(x, dim)
    y.backward(dy)
    assert_close(y.detach(), expected.detach())
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=2e-6, atol=2e-6)  # dy - exp(y) * sum may cancel


def test_the_logarithm_is_cast_and_refused_as_softmax_is():
    x = randn(3, 40, dtype=torch.bfloat16)
    assert_close(log_softmax(x, dtype=torch.float32), torch.log_softmax(x.double(), -1))
    assert log_softmax(torch.empty(0, 5)).shape == (0, 5)
    with pytest.raises(TypeError, match="log_softmax takes"):
        log_softmax(torch.ones(2, 3, dtype=torch.int32))
    with pytest.raises(IndexError, match="log_softmax: dim 2"):
        log_softmax(torch.ones(2, 3), 2)


def filled(scores, mask):
    """The scores under a mask, as torch would have them."""
    return scores.masked_fill(~mask, -float("inf")) if mask.dtype == torch.bool else scores + mask


# A row for each way that a mask's rows are found: repeated over leading dimensions, over heads, over queries, over
# neither, over leading dimensions but one; and one row for all.
MASKS = [(6, 9), (2, 1, 6, 9), (2, 1, 1, 9), (2, 3, 6, 9), (1, 3, 1, 9), (3, 1, 9), (9,), (1, 1, 6, 9)]


@pytest.mark.parametrize("added", [False, True], ids=["bool", "added"])
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks_are_broadcast_as_in_torch(shape, added):
    x, mask = randn(2, 3, 6, 9), randn(*shape, seed=1)
    mask = mask if added else mask > -0.5
    mask[..., 0] = 1  # at least one column for each row
    assert_close(softmax(x, mask=mask), torch.softmax(filled(x.double(), mask), -1))


def test_a_mask_is_read_alike_by_offsets_of_64_bits(monkeypatch):
    one_pass, config = DECLARATION.forward.variant("one_pass"), {"BLOCK_M": 8, "num_warps": 1}
    x, mask = randn(3, 7, 12), randn(7, 12, seed=1) > -1.0
    near = one_pass.launch(x, mask=mask, config=config)
    monkeypatch.setattr(forward, "extent", lambda mask: 2**31)
    assert torch.equal(one_pass.launch(x, mask=mask, config=config), near)


def test_masks_are_read_through_their_strides():
    x, wide = randn(2, 6, 9), randn(2, 6, 20, seed=1)
    for mask in (wide[:, :, 3:12], wide[:1, :, ::2][..., :9].expand(2, 6, 9), wide[:, ::3, :9].transpose(0, 1)[0]):
        mask = mask if mask.dim() == 3 else mask[:, None]
        assert_close(softmax(x, mask=mask), torch.softmax(x.double() + mask, -1))


def test_rows_of_which_nothing_takes_part_are_nan_as_in_torch():
    x, mask = randn(3, 5), torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    assert_close(softmax(x, mask=mask), torch.softmax(filled(x.double(), mask), -1))
    taller = randn(4, 2)  # causal with fewer columns than rows: none for the first two
    assert_close(softmax(taller, causal=True), torch.softmax(filled(taller.double(), triangle(4, 2)), -1))


def triangle(q, k):
    return torch.ones(q, k, dtype=torch.bool).tril(k - q)


@pytest.mark.parametrize(("q", "k"), [(7, 7), (3, 11), (1, 5), (2, 2100)], ids=str)  # 2100: two blocks
def test_causal_scores_and_their_gradients_agree_with_float64(q, k):
    x, dy = randn(2, q, k).requires_grad_(), randn(2, q, k, seed=1)
    exact = x.detach().double().requires_grad_()
    expected = torch.softmax(filled(exact, triangle(q, k)), -1)
    expected.backward(dy.double())
    y = softmax(x, causal=True)
    y.backward(dy)
    assert_close(y.detach(), expected.detach())
    assert_close(x.grad, exact.grad)


@pytest.mark.parametrize("variant", DECLARATION.backward.variants, ids=lambda v: v.name)
def test_what_lies_above_the_diagonal_is_not_looked_at_in_the_gradient(variant):
    if variant.name == "held":
        pytest.skip("knows no masks")
    y, dy = torch.softmax(filled(randn(4, 4), triangle(4, 4)), -1), randn(4, 4, seed=1)
    dy[0, 3] = float("nan")
    config = variant.default(case("fp32", m=4, n=4), INTERPRETER)
    dx = variant.launch(y, dy, causal=True, config=config)
    assert torch.equal(dx.triu(1), torch.zeros(4, 4))
    assert dx.isfinite().all()
    dy[2, 0] = float("nan")  # which makes NaN of its row, as far as that is looked at
    dx = variant.launch(y, dy, causal=True, config=config)
    assert torch.equal(dx.triu(1), torch.zeros(4, 4))
    assert dx[2, :3].isnan().all()


def test_a_mask_and_the_diagonal_go_together():
    x, mask = randn(2, 5, 8), randn(5, 8, seed=1) > -0.5
    mask[:, 0] = True
    assert_close(softmax(x, mask=mask, causal=True), torch.softmax(filled(x.double(), mask & triangle(5, 8)), -1))


def test_an_additive_mask_has_a_gradient_where_it_wants_one():
    x, bias, dy = randn(2, 3, 4, 9), randn(3, 1, 9, seed=1).requires_grad_(), randn(2, 3, 4, 9, seed=2)
    exact = bias.detach().double().requires_grad_()
    torch.softmax(x.double() + exact, -1).backward(dy.double())
    softmax(x, mask=bias).backward(dy)
    torch.testing.assert_close(bias.grad.double(), exact.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones(6, 8, dtype=torch.bool), "a mask of shape"),
        (torch.ones(6, 1, dtype=torch.bool), "a mask of shape"),
        (torch.ones(5, 9, dtype=torch.bool), "a mask of shape"),
        (torch.ones(2, 1, 3, 1, 9, dtype=torch.bool), "a mask of shape"),
        (torch.ones(6, 9, dtype=torch.int32), "torch.int32"),
    ],
    ids=["other length", "one column", "other rows", "two runs apart", "integers"],
)
def test_masks_that_do_not_fit_are_refused_in_words(mask, words):
    x = randn(2, 4, 3, 6, 9) if mask.dim() == 5 else randn(2, 6, 9)
    with pytest.raises(ValueError, match=words):
        softmax(x, mask=mask)


def test_masks_go_with_the_last_dimension_of_a_matrix_alone():
    with pytest.raises(ValueError, match="last dim"):
        softmax(randn(4, 4), 0, causal=True)
    with pytest.raises(ValueError, match="last dim"):
        softmax(randn(4), causal=True)


def test_a_mask_must_fit_also_where_there_are_no_scores():
    x = torch.empty(2, 6, 0)
    assert softmax(x, mask=torch.ones(6, 0, dtype=torch.bool)).shape == x.shape
    for shape in ((6, 9), (5, 0), (3, 2, 6, 0)):
        with pytest.raises(ValueError, match="a mask of shape"):
            softmax(x, mask=torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("flags", [{}, {"causal": True}, {"mask": torch.tensor([True, False, True, True])}], ids=str)
def test_torch_compile_takes_forward_and_backward_as_one_graph(flags):
    def double(x):
        return softmax(x * 2.0, **flags) * 3.0

    x, dy = randn(3, 4), randn(3, 4, seed=1)
    results = []
    for function in (double, torch.compile(double, fullgraph=True, backend="aot_eager")):
        leaf = x.clone().requires_grad_()
        y = function(leaf)
        y.backward(dy)
        results.append((y.detach(), leaf.grad))
    torch.testing.assert_close(results[0], results[1], equal_nan=True)


def test_torch_accepts_the_operators():
    x, mask = randn(3, 5).requires_grad_(), torch.ones(3, 5, dtype=torch.bool)
    torch.library.opcheck(torch.ops.kernel_atlas.softmax_forward.default, (x, mask, False, False))
    torch.library.opcheck(torch.ops.kernel_atlas.softmax_backward.default, (x.detach(), x.detach(), True, False))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool])
def test_other_dtypes_are_refused_by_name(dtype):
    with pytest.raises(TypeError, match=str(dtype)):
        softmax(torch.ones(2, 3, dtype=dtype))


@pytest.mark.parametrize("dim", [True, 1.0, -1.0, "1", None, (1,)], ids=repr)
def test_a_dimension_that_is_no_integer_is_refused_as_in_torch(dim):
    for function in (softmax, log_softmax):
        with pytest.raises(TypeError, match="integers as dim"):
            function(randn(2, 3), dim)


@pytest.mark.parametrize(("shape", "dim"), [((2, 3), 2), ((2, 3), -3), ((), 1)], ids=str)
def test_a_dimension_that_is_not_there_is_refused(shape, dim):
    with pytest.raises(IndexError, match=f"dim {dim}"):
        softmax(torch.zeros(shape), dim)


def test_rows_too_long_for_registers_are_streamed():
    longest = {("forward", "fp32"): 2**15, ("forward", "bf16"): 2**14, ("backward", "bf16"): 2**16}
    for (direction, dtype), n in longest.items():
        work = DECLARATION.passes[direction]
        held = "held" if direction == "backward" else "one_pass"
        assert work.preferred(case(dtype, m=4096, n=n), GPUS["h200"]).name == held
        assert work.preferred(case(dtype, m=4096, n=2 * n), GPUS["h200"]) is work.variants[-1]


def test_few_rows_too_long_for_registers_are_shared_by_programs():
    for m, n, splits in ((1, 128256, 16), (16, 127008, 16), (64, 50257, 4)):
        problem = case("bf16", m=m, n=n)
        split = DECLARATION.forward.preferred(problem, GPUS["h200"])
        assert (split.name, split.default(problem, GPUS["h200"])["SPLITS"]) == ("split", splits)
    assert DECLARATION.forward.preferred(case("bf16", m=132, n=50257), GPUS["h200"]).name == "online"


def test_few_rows_of_32768_elements_to_128_kib_are_held_by_clusters_on_hopper():
    def chosen(dtype, m, n, gpu="h200", **flags):
        return DECLARATION.forward.preferred(case(dtype, m=m, n=n, **flags), GPUS[gpu]).name

    held = [("bf16", 1, 65536), ("fp16", 16, 32768), ("bf16", 3, 40008), ("fp32", 6, 32768)]
    assert {chosen(*shape) for shape in held} == {"clustered"} == {chosen("bf16", 8, 50264, log=True)}
    beyond = [("bf16", 17, 65536), ("bf16", 4, 65544), ("bf16", 4, 50257), ("fp32", 6, 32772), ("bf16", 4, 32760)]
    assert "clustered" not in {*(chosen(*shape) for shape in beyond), chosen("bf16", 8, 50264, "a100")}


def test_a_config_of_long_rows_fits_no_short_ones():
    one_pass, many = DECLARATION.forward.variant("one_pass"), case("bf16", m=2**18, n=64)
    assert "need company" in one_pass.fits({"BLOCK_M": 1, "num_warps": 1}, many, GPUS["h200"])
    assert not one_pass.fits({"BLOCK_M": 16, "num_warps": 2}, many, GPUS["h200"])
    assert "smaller tiles" in one_pass.fits({"BLOCK_M": 64, "num_warps": 4}, case("bf16", m=512, n=64), GPUS["h200"])
    assert DECLARATION.forward.variant("online").unsupported(many, GPUS["h200"])


@pytest.mark.parametrize("direction", DECLARATION.passes)
def test_untuned_short_rows_share_programs_and_have_more_warps_where_sms_hold_them_all(direction):
    def chosen(m, n):
        problem = case("bf16", m=m, n=n)
        return tuple(
            DECLARATION.passes[direction].preferred(problem, GPUS["h200"]).default(problem, GPUS["h200"]).values()
        )

    assert [chosen(m, 77) for m in (9856, 131072)] == [(8, 2), (8, 1)]
    assert [chosen(m, 12) for m in (68, 8192)] == [(1, 1), (16, 1)]  # two programs an SM, of rows of 24 bytes


@pytest.mark.parametrize("name", GPUS)
def test_defaults_are_points_of_the_space_that_fit(name):
    assert_defaults_fit(DECLARATION, GPUS[name])
