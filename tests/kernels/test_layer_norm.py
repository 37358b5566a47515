"""Layer normalisation on the interpreter: values, accuracy, gradients, refusals; and what its spaces hold."""

import pytest
import torch
from atlas.declaration import case
from atlas.declaration.hardware import INTERPRETER
from atlas.validation.problems import Problem
from defaults_under_test import assert_defaults_fit
from norms_under_test import DTYPES, GPUS, assert_close, by_team_and_by_columns, each_variant, randn
from torch.nn import functional

from kernels.layer_norm import DECLARATION, layer_norm

CPU = torch.device("cpu")


def double(tensor):
    return tensor if tensor is None else tensor.detach().double()


@each_variant(DECLARATION)
@pytest.mark.parametrize("problem", DECLARATION.edge_cases, ids=str)
def test_edge_cases_agree_with_float64(problem, direction, variant):
    if variant.unsupported(problem, INTERPRETER):
        pytest.skip(variant.unsupported(problem, INTERPRETER))
    drawn = Problem(DECLARATION, direction, problem, CPU, seed=1)
    assert not drawn.judge(variant.launch(**drawn.inputs, config=variant.default(problem, INTERPRETER))).reason


@each_variant(DECLARATION)
# rows of whole vectors; the longer row has a tail block, the other more rows than one tile
@pytest.mark.parametrize(("m", "n"), [(9, 72), (3, 4104)], ids=["short", "tail"])
def test_every_config_gives_the_same_results(direction, variant, m, n):
    problem = case("fp16", m=m, n=n)
    if variant.name == "odd" and n < 2048:
        pytest.skip("for long rows")
    drawn = Problem(DECLARATION, direction, problem, CPU, seed=2)
    configs = list(variant.configs(problem, INTERPRETER))
    assert configs
    for config in configs:
        assert not drawn.judge(variant.launch(**drawn.inputs, config=config)).reason, config


@pytest.mark.parametrize("team", [1, 2, 4])
@pytest.mark.parametrize("has", [(True, True), (True, False), (False, True)], ids=["both", "weight", "bias"])
def test_a_team_s_sums_and_columns_make_up_whole_rows(monkeypatch, team, has):
    # The last span is shorter than the others, and each ends in a tile that is cut.
    problem = case("fp32", m=9, n=1160, residual=True)
    inputs = Problem(DECLARATION, "backward", problem, CPU, seed=4).inputs
    inputs |= {name: inputs[name] if there else None for name, there in zip(("weight", "bias"), has, strict=True)}
    module = "kernels.layer_norm.team"
    found, expected = by_team_and_by_columns(monkeypatch, module, DECLARATION, problem, inputs, team)
    for ours, theirs, there in zip(found, expected, (True, *has), strict=True):
        if there:
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_team_is_for_long_rows_of_whole_vectors_on_gpus_whose_programs_run_at_once():
    team = DECLARATION.backward.variant("team")
    assert "wait for one another" in team.unsupported(case("bf16", m=9, n=32768), INTERPRETER)
    assert not team.unsupported(case("bf16", m=9, n=32768), GPUS["h200"])
    assert "short enough" in team.unsupported(case("bf16", m=9, n=16384), GPUS["h200"])
    assert "8 bytes" in team.unsupported(case("bf16", m=9, n=32770), GPUS["h200"])
    assert not team.unsupported(case("bf16", m=9, n=32772), GPUS["h200"])
    assert "longer" in team.unsupported(case("fp32", m=9, n=2**18), GPUS["h200"])


@pytest.mark.parametrize("variant", DECLARATION.forward.variants, ids=lambda v: v.name)
@pytest.mark.parametrize("n", [96, 5000], ids=["one block", "blocks and a tail"])
def test_a_mean_far_from_zero_cancels_nothing(variant, n):
    # E[x^2] - E[x]^2 in fp32 would leave no digit of a variance of 1 beside a mean of 1e4; a drift along the row makes
    # any one block's mean a poor shift for the others.
    x = randn(3, n) + 1e4
    x[1] += torch.linspace(0, 100, n)
    weight, bias = randn(n, seed=1), randn(n, seed=2)
    config = variant.default(case("fp32", m=3, n=n), INTERPRETER)
    out, mean, rstd = variant.launch(x, weight, bias, 1e-5, config=config)
    exact = functional.layer_norm(x.double(), (n,), weight.double(), bias.double())
    # A mean of 1e4 is off by up to 2^-24 * 1e4 = 6e-4 of the deviation of 1 it is subtracted for.
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=5e-3)
    torch.testing.assert_close(rstd.double(), (x.double().var(-1, correction=0) + 1e-5).rsqrt(), rtol=6e-4, atol=0)
    assert mean.dtype == rstd.dtype == torch.float32


@pytest.mark.parametrize("variant", DECLARATION.forward.variants, ids=lambda v: v.name)
def test_nan_and_infinities_spoil_their_row_alone(variant):
    x = randn(4, 40)
    x[1, 3], x[2, 39] = float("nan"), float("inf")
    out, _, _ = variant.launch(x, None, None, 1e-5, config=variant.default(case("fp32", m=4, n=40), INTERPRETER))
    assert out[1].isnan().all() and out[2].isnan().all()
    assert_close(out[[0, 3]], functional.layer_norm(x[[0, 3]].double(), (40,)))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("has_weight", [True, False], ids=["weight", "no weight"])
@pytest.mark.parametrize("n", [24, 20_000], ids=["registers", "streamed"])
def test_weight_and_bias_are_optional_forward_and_backward(n, has_weight, has_bias, dtype):
    x, dy = randn(3, n, dtype=dtype).requires_grad_(), randn(3, n, dtype=dtype, seed=3)
    weight = randn(n, dtype=dtype, seed=1).requires_grad_() if has_weight else None
    bias = randn(n, dtype=dtype, seed=2).requires_grad_() if has_bias else None
    exact = [tensor if tensor is None else double(tensor).requires_grad_() for tensor in (x, weight, bias)]
    expected = functional.layer_norm(exact[0], (n,), exact[1], exact[2])
    expected.backward(dy.double())
    out = layer_norm(x, n, weight, bias)
    assert_close(out, expected.detach(), dtype)
    out.backward(dy)
    for found, reference in zip((x, weight, bias), exact, strict=True):
        if found is not None:
            assert_close(found.grad, reference.grad, dtype)


def test_gradients_of_inputs_that_need_none_are_not_returned():
    x, weight = randn(4, 8), randn(8, seed=1).requires_grad_()
    layer_norm(x, 8, weight).backward(randn(4, 8, seed=2))
    assert x.grad is None and weight.grad is not None


@pytest.mark.parametrize(
    ("shape", "normalized"),
    [((5, 6), 6), ((2, 3, 4), (3, 4)), ((2, 3, 4), [4]), ((7,), (7,)), ((2, 3), (2, 3))],
    ids=str,
)
def test_any_number_of_last_dimensions_is_normalised(shape, normalized):
    x = randn(*shape)
    sizes = (normalized,) if isinstance(normalized, int) else tuple(normalized)
    weight, bias = randn(*sizes, seed=1), randn(*sizes, seed=2)
    expected = functional.layer_norm(x.double(), sizes, weight.double(), bias.double(), 1e-3)
    assert_close(layer_norm(x, normalized, weight, bias, 1e-3), expected)


def test_layouts_that_are_not_contiguous_are_read_through_their_strides():
    base, weight = randn(40, 30), randn(60, seed=1)[::2]
    for x in (base[:, :], base[::3], base[:, None].expand(40, 2, 30), randn(30, 40).t()):
        assert_close(layer_norm(x, 30, weight), functional.layer_norm(x.double(), (30,), weight.double()))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (2, 0, 4)], ids=str)
def test_empty_input_gives_what_torch_gives_also_backward(shape):
    found, expected = [], []
    for function, grads in ((layer_norm, found), (functional.layer_norm, expected)):
        x, weight = torch.empty(shape, requires_grad=True), torch.ones(shape[-1], requires_grad=True)
        out = function(x, shape[-1:], weight)
        assert out.shape == shape
        out.sum().backward()
        grads += [x.grad, weight.grad]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_second_derivatives_agree_with_float64_autograd():
    x, weight, dy, v = randn(3, 9), randn(9, seed=1), randn(3, 9, seed=2), randn(3, 9, seed=3)

    def second(function, x, weight, dy, v):
        x, weight = x.requires_grad_(), weight.requires_grad_()
        (first,) = torch.autograd.grad(function(x, (9,), weight), x, dy, create_graph=True)
        return torch.autograd.grad(first, (x, weight), v)

    expected = second(functional.layer_norm, double(x), double(weight), dy.double(), v.double())
    for found, reference in zip(second(layer_norm, x, weight, dy, v), expected, strict=True):
        assert_close(found, reference)


def test_two_runs_of_the_backward_agree_bit_by_bit():
    # partial sums of dweight and dbias of several programs, short rows and long ones; few rows in one launch
    problems = case("fp32", m=140, n=24), case("fp16", m=9, n=9008), case("fp32", m=9, n=136)
    problems += (case("bf16", m=40, n=4099),)  # odd rows
    for variant in DECLARATION.backward.variants:
        if variant.name == "team":  # programs that wait for each other run on a GPU alone
            continue
        problem = next(p for p in problems if not variant.unsupported(p, INTERPRETER))
        inputs = Problem(DECLARATION, "backward", problem, CPU, seed=3).inputs
        first, again = (variant.launch(**inputs, config=variant.default(problem, INTERPRETER)) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("n", [24, 9000], ids=["registers", "streamed"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_a_residual_is_added_and_both_results_have_gradients(dtype, n):
    x, residual, dy, dsum = (randn(3, n, dtype=dtype, seed=seed) for seed in range(4))
    weight, bias = randn(n, dtype=dtype, seed=4), randn(n, dtype=dtype, seed=5)
    leaves = [t.requires_grad_() for t in (x, residual, weight, bias)]
    out, total = layer_norm(x, n, weight, bias, residual=residual)
    rounded = (x.detach().float() + residual.detach().float()).to(dtype)
    assert_close(total.detach(), rounded.double(), dtype)
    exact = [t.detach().double().requires_grad_() for t in (total, weight, bias)]  # what was normalised, as rounded
    expected = functional.layer_norm(exact[0], (n,), exact[1], exact[2])
    assert_close(out, expected.detach(), dtype)
    found = torch.autograd.grad((out, total), leaves, (dy, dsum))
    want = torch.autograd.grad((expected, exact[0].view_as(exact[0])), exact, (dy.double(), dsum.double()))
    assert torch.equal(found[0], found[1])
    for gradient, reference in zip(found[1:], want, strict=True):
        assert_close(gradient, reference, dtype)


@pytest.mark.parametrize("used", ["out", "sum"])
def test_either_result_with_a_residual_may_go_unused(used):
    x, residual = randn(4, 16).requires_grad_(), randn(4, 16, seed=1).requires_grad_()
    results = dict(zip(("out", "sum"), layer_norm(x, 16, residual=residual), strict=True))
    found = torch.autograd.grad(results[used].square().sum(), (x, residual))
    total = (x + residual).detach().double().requires_grad_()
    expected = {"out": functional.layer_norm(total, (16,)), "sum": total}[used].square().sum()
    (reference,) = torch.autograd.grad(expected, total)
    for gradient in found:
        assert_close(gradient, reference)


def test_second_derivatives_with_a_residual_agree_with_float64_autograd():
    def second(function, *tensors):
        tensors = [tensor.requires_grad_() for tensor in tensors]
        out, total = function(*tensors)
        (first,) = torch.autograd.grad((out * out.detach()).sum() + total.square().sum(), tensors[0], create_graph=True)
        return torch.autograd.grad(first.square().sum(), tensors)

    def twin(x, residual, weight):
        return functional.layer_norm(x + residual, (9,), weight), x + residual

    given = randn(3, 9), randn(3, 9, seed=1), randn(9, seed=2)
    expected = second(twin, *(double(t) for t in given))
    for found, reference in zip(
        second(lambda x, residual, weight: layer_norm(x, 9, weight, residual=residual), *given), expected, strict=True
    ):
        torch.testing.assert_close(found.double(), reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("with_residual", [False, True], ids=["plain", "residual"])
def test_torch_compile_takes_it_whole_forward_and_backward(with_residual):
    def function(x, weight, bias):
        result = layer_norm(x, 16, weight, bias, residual=x * 2 if with_residual else None)
        return result[0] + result[1] if with_residual else result

    def twin(x, weight, bias):
        total = x + x * 2 if with_residual else x
        return functional.layer_norm(total, (16,), weight, bias) + (total if with_residual else 0)

    tensors = [t.requires_grad_() for t in (randn(6, 16), randn(16, seed=1), randn(16, seed=2))]
    exact = [double(t).requires_grad_() for t in tensors]
    out = torch.compile(function, fullgraph=True, backend="aot_eager")(*tensors)
    assert_close(out, twin(*exact).detach())
    dy = randn(6, 16, seed=3)
    out.backward(dy)
    twin(*exact).backward(dy.double())
    for found, reference in zip(tensors, exact, strict=True):
        assert_close(found.grad, reference.grad)


def test_torch_finds_nothing_wrong_with_the_operators():
    x, residual, weight = (t.requires_grad_() for t in (randn(4, 16), randn(4, 16, seed=1), randn(16, seed=2)))
    operators = torch.ops.kernel_atlas
    torch.library.opcheck(operators.layer_norm_forward.default, (x, 16, weight, None, 1e-5))
    torch.library.opcheck(operators.layer_norm_residual_forward.default, (x, residual, 16, weight, None, 1e-5))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.ones(2, 3, dtype=torch.float64), 3), TypeError, "float64"),
        ((torch.ones(2, 3), 2), ValueError, "normalized_shape"),
        ((torch.ones(2, 3), ()), ValueError, "normalized_shape"),
        ((torch.ones(3), (2, 3)), ValueError, "normalized_shape"),
        ((torch.ones(2, 3), 3, torch.ones(2)), ValueError, "weight of shape"),
        ((torch.ones(2, 3), 3, None, torch.ones(3, 1)), ValueError, "bias of shape"),
        ((torch.ones(2, 3), 3, torch.ones(3).double()), TypeError, "weight in fp32"),
        ((torch.ones(2, 3), 3, None, None, 1e-5, torch.ones(3)), ValueError, "residual of shape"),
    ],
    ids=[
        "float64",
        "wrong size",
        "no size",
        "more sizes than dimensions",
        "short weight",
        "bias shape",
        "mixed dtypes",
        "residual to be broadcast",
    ],
)
def test_what_does_not_fit_is_refused_by_name(arguments, error, message):
    with pytest.raises(error, match=message):
        layer_norm(*arguments)


def test_untuned_rows_in_several_tiles_have_programs_of_their_own():
    for n, rows, warps in ((1024, 2, 2), (1152, 1, 1), (2304, 1, 2), (5120, 1, 4)):
        problem = case("fp16", m=38302, n=n)
        config = DECLARATION.forward.preferred(problem, GPUS["h200"]).default(problem, GPUS["h200"])
        assert (config["BLOCK_M"], config["num_warps"]) == (rows, warps)


@pytest.mark.parametrize(
    ("m", "n", "residual", "expected"),
    [
        (1378, 768, False, (1, False, 1)),  # 3.07 us for 3.65 (H200, all of these)
        (4500, 1152, False, (1, False, 1)),  # 7.83 for 9.21
        (2457, 823, False, (2, False, 4)),  # 6.54 for 7.39
        (1200, 1024, False, (1, True, 1)),  # 3.37 for 3.64
        (8000, 768, False, (1, True, 1)),  # more rows than were measured
        (1378, 768, True, (1, True, 1)),
        (1378, 1536, False, (1, True, 1)),
        (4096, 1024, False, (2, True, 2)),
    ],
)
def test_untuned_rows_of_few_rounds_of_programs_load_weight_early(m, n, residual, expected):
    problem = case("bf16", m=m, n=n, **({"residual": True} if residual else {}))
    config = DECLARATION.forward.preferred(problem, GPUS["h200"]).default(problem, GPUS["h200"])
    assert tuple(config.values()) == expected
    assert config in list(DECLARATION.forward.variant("one_pass").configs(problem, GPUS["h200"]))


@pytest.mark.parametrize(("n", "config"), [(600, (1, False, 1)), (1280, (1, False, 1)), (823, (2, False, 4))])
def test_rows_in_tiles_with_weight_loaded_early_agree_with_float64(n, config):
    drawn = Problem(DECLARATION, "forward", case("fp16", m=5, n=n), torch.device("cpu"), seed=1)
    variant = DECLARATION.forward.variant("one_pass")
    outputs = variant.launch(**drawn.inputs, config=dict(zip(variant.space, config, strict=True)))
    assert not drawn.judge(outputs).reason


@pytest.mark.parametrize("name", GPUS)
def test_defaults_are_points_of_the_space_that_fit(name):
    assert_defaults_fit(DECLARATION, GPUS[name])
