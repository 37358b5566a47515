"""RMS normalisation on the interpreter: values, residual, gradients, layouts, torch.compile, refusals, spaces."""

import functools

import norms_under_test
import pytest
import torch
from atlas.declaration import case
from atlas.declaration.hardware import INTERPRETER
from atlas.validation.problems import Problem
from defaults_under_test import assert_default_fits
from norms_under_test import DTYPES, GPUS, by_team_and_by_columns, each_variant, randn
from torch.nn import functional

from kernels.nn import RMSNorm
from kernels.rms_norm import DECLARATION, rms_norm

CPU = torch.device("cpu")
FP32_EPS = torch.finfo(torch.float32).eps
assert_close = functools.partial(norms_under_test.assert_close, bf16=3e-2)


@each_variant(DECLARATION)
# Several tiles with a masked last one, whole tiles, and rows off 16 bytes; more rows than programs each time.
@pytest.mark.parametrize(("m", "n"), [(5, 2200), (5, 3072), (5, 1025)], ids=["tail", "even", "odd"])
def test_configs_from_both_ends_of_the_space_give_the_same_results(direction, variant, m, n):
    problem = case("fp32", m=m, n=n, residual=n == 3072)
    drawn = Problem(DECLARATION, direction, problem, CPU, seed=2)
    configs = list(variant.configs(problem, INTERPRETER))
    assert configs
    for config in (configs[0], configs[-1]):
        assert not drawn.judge(variant.launch(**drawn.inputs, config=config)).reason, config


@each_variant(DECLARATION)
def test_16_bit_rows_of_every_variant_agree_with_float64(direction, variant):
    # 4104 columns in 16 bits: long enough for `reread` to have two chunks, and no multiple of any block
    problem = case("bf16", m=5, n=4104, residual=True)
    drawn = Problem(DECLARATION, direction, problem, CPU, seed=3)
    assert not drawn.judge(variant.launch(**drawn.inputs, config=variant.default(problem, INTERPRETER))).reason


@pytest.mark.parametrize("team", [1, 2, 4])
@pytest.mark.parametrize("has_weight", [True, False], ids=["weight", "no weight"])
def test_a_team_s_sums_and_columns_make_up_whole_rows(monkeypatch, team, has_weight):
    problem = case("fp32", m=9, n=1160, residual=True)
    inputs = Problem(DECLARATION, "backward", problem, CPU, seed=4).inputs
    inputs |= {} if has_weight else {"weight": None}
    module = "kernels.rms_norm.long_rows"
    (dx, dweight), expected = by_team_and_by_columns(monkeypatch, module, DECLARATION, problem, inputs, team)
    torch.testing.assert_close(dx, expected[0], rtol=1e-5, atol=1e-5)
    if has_weight:
        torch.testing.assert_close(dweight, expected[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", DECLARATION.forward.variants, ids=lambda v: v.name)
def test_nan_and_infinities_spoil_their_row_alone(variant):
    n = 8192 if variant.name == "late" else 40  # long rows alone
    x = randn(4, n)
    x[1, 3], x[2, n - 1] = float("nan"), float("inf")
    problem = case("fp32", m=4, n=n, residual=False)
    out, _ = variant.launch(x, None, None, 1e-5, config=variant.default(problem, INTERPRETER))
    expected = functional.rms_norm(x, (n,), eps=1e-5)
    assert torch.equal(out.isnan(), expected.isnan())
    assert_close(out[[0, 3]], expected[[0, 3]])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("has_weight", [True, False], ids=["weight", "no weight"])
@pytest.mark.parametrize("has_residual", [True, False], ids=["residual", "no residual"])
def test_weight_and_residual_are_optional_forward_and_backward(has_residual, has_weight, dtype):
    leaves = [randn(2, 3, 24, dtype=dtype), randn(2, 3, 24, dtype=dtype, seed=1), randn(24, dtype=dtype, seed=2)]
    x, residual, weight = (leaf.requires_grad_() for leaf in leaves)
    residual, weight = residual if has_residual else None, weight if has_weight else None
    exact = [None if t is None else t.detach().double().requires_grad_() for t in (x, residual, weight)]
    added = exact[0] if residual is None else exact[0] + exact[1]
    expected = [functional.rms_norm(added, (24,), exact[2], FP32_EPS), added][: 1 + has_residual]
    found = rms_norm(x, 24, weight, residual=residual)
    found = found if has_residual else (found,)
    upstream = [randn(2, 3, 24, dtype=dtype, seed=3 + i) for i in range(len(found))]
    torch.autograd.backward(found, upstream)
    torch.autograd.backward(expected, [dy.double() for dy in upstream])
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, dtype)
    for a, b in zip((x, residual, weight), exact, strict=True):
        if a is not None:
            assert_close(a.grad, b.grad, dtype)


def test_what_is_normalised_is_the_rounded_sum():
    # 1 + 2^-12 is 1 in bf16: the row of the rounded sum has no spread left
    x, residual = torch.ones(1, 16, dtype=torch.bfloat16), torch.full((1, 16), 2.0**-12, dtype=torch.bfloat16)
    out, added = rms_norm(x, 16, eps=0.0, residual=residual)
    assert torch.equal(added, x) and torch.equal(out, x)


@pytest.mark.parametrize("used", ["out", "sum"])
def test_either_output_alone_may_be_differentiated(used):
    x, residual, weight, dy = (randn(*shape, seed=i) for i, shape in enumerate([(3, 8), (3, 8), (8,), (3, 8)]))
    x, residual, weight = x.requires_grad_(), residual.requires_grad_(), weight.requires_grad_()
    out, added = rms_norm(x, 8, weight, 1e-6, residual)
    (out if used == "out" else added).backward(dy)
    exact = [t.detach().double().requires_grad_() for t in (x, residual, weight)]
    total = exact[0] + exact[1]
    (functional.rms_norm(total, (8,), exact[2], 1e-6) if used == "out" else total).backward(dy.double())
    for a, b in zip((x, residual, weight), exact, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            assert_close(a.grad, b.grad)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_epsilon_is_by_default_fp32_s_in_every_dtype_as_in_torch(dtype):
    x = randn(2, 8, dtype=dtype) * 2.0**-11  # squares of fp32 epsilon's size: bf16's own would be all that counts
    exact = functional.rms_norm(x.double(), (8,), eps=FP32_EPS)
    for found in (rms_norm(x, 8), RMSNorm(8, dtype=dtype)(x), rms_norm(x, 8, residual=torch.zeros_like(x))[0]):
        assert_close(found.detach(), exact, dtype)
        assert_close(found.detach(), functional.rms_norm(x, (8,)), dtype)  # what torch documents is not what it does
    assert_close(torch.nn.RMSNorm(8, dtype=dtype)(x).detach(), exact, dtype)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_gradients_without_an_epsilon_are_those_of_fp32_s(dtype):
    leaf, dy = (randn(2, 8, dtype=dtype) * 2.0**-11).requires_grad_(), randn(2, 8, dtype=dtype, seed=1)
    exact = leaf.detach().double().requires_grad_()
    (found,) = torch.autograd.grad(rms_norm(leaf, 8), leaf, dy)
    (expected,) = torch.autograd.grad(functional.rms_norm(exact, (8,), eps=FP32_EPS), exact, dy.double())
    size = expected.abs().max()
    assert_close(found / size, expected / size, dtype)


@pytest.mark.parametrize(
    ("shape", "normalized"), [((5, 6), 6), ((2, 3, 4), (3, 4)), ((2, 3, 4), [4]), ((7,), (7,))], ids=str
)
def test_any_number_of_last_dimensions_is_normalised(shape, normalized):
    sizes = (normalized,) if isinstance(normalized, int) else tuple(normalized)
    x, weight, residual = randn(*shape), randn(*sizes, seed=1), randn(*shape, seed=2)
    assert_close(rms_norm(x, normalized, weight, 1e-3), functional.rms_norm(x.double(), sizes, weight.double(), 1e-3))
    out, added = rms_norm(x, normalized, weight, 1e-3, residual)
    assert torch.equal(added, x + residual)
    assert_close(out, functional.rms_norm(added.double(), sizes, weight.double(), 1e-3))


def test_layouts_that_are_not_contiguous_are_read_through_their_strides():
    base, weight = randn(40, 30), randn(60, seed=1)[::2]
    for x in (base[::3], base[:, None].expand(40, 2, 30), randn(30, 40).t()):
        expected = functional.rms_norm(x.double() * 2, (30,), weight.double(), 1e-6)
        assert_close(rms_norm(x, 30, weight, 1e-6, residual=x)[0], expected)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (2, 0, 4)], ids=str)
def test_empty_input_gives_what_torch_gives_also_backward(shape):
    found, expected = [], []
    for function, grads in ((rms_norm, found), (functional.rms_norm, expected)):
        x, weight = torch.empty(shape, requires_grad=True), torch.ones(shape[-1], requires_grad=True)
        out = function(x, shape[-1:], weight)
        assert out.shape == shape
        out.sum().backward()
        grads += [x.grad, weight.grad]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert [t.shape for t in rms_norm(torch.empty(shape), shape[-1:], residual=torch.empty(shape))] == [shape, shape]


@pytest.mark.parametrize("has_residual", [True, False], ids=["residual", "no residual"])
def test_second_derivatives_agree_with_float64_autograd(has_residual):
    x, weight, dy, v, residual = (randn(*s, seed=i) for i, s in enumerate([(3, 9), (9,), (3, 9), (3, 9), (3, 9)]))

    def second(ours, x, weight, dy, v, residual):
        x, weight = x.requires_grad_(), weight.requires_grad_()
        if has_residual:
            plain = (functional.rms_norm(x + residual, (9,), weight, 1e-6), x + residual)
            out, added = rms_norm(x, 9, weight, 1e-6, residual) if ours else plain
            outputs, upstream = (out, added), (dy, dy * 2)
        else:
            outputs, upstream = (rms_norm if ours else functional.rms_norm)(x, (9,), weight, 1e-6), dy
        (first,) = torch.autograd.grad(outputs, x, upstream, create_graph=True)
        return torch.autograd.grad(first, (x, weight), v)

    expected = second(False, *(t.double() for t in (x, weight, dy, v, residual)))
    for found, reference in zip(second(True, x, weight, dy, v, residual), expected, strict=True):
        assert_close(found, reference)


def test_two_runs_of_the_backward_agree_bit_by_bit():
    problem = case("fp32", m=5, n=2056, residual=False)  # several programs' partial sums of dweight
    inputs = Problem(DECLARATION, "backward", problem, CPU, seed=3).inputs
    for variant in (v for v in DECLARATION.backward.variants if v.name != "team"):
        first, again = (variant.launch(**inputs, config=variant.default(problem, INTERPRETER)) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("has_residual", [True, False], ids=["residual", "no residual"])
def test_torch_compile_takes_forward_and_backward_as_one_graph(has_residual):
    def block(x, weight, residual):
        out = rms_norm(x * 2.0, 6, weight, residual=residual if has_residual else None)
        return sum(out) if has_residual else out * 3.0

    inputs, dy = (randn(3, 6), randn(6, seed=1), randn(3, 6, seed=2)), randn(3, 6, seed=3)
    results = []
    for function in (block, torch.compile(block, fullgraph=True, backend="aot_eager")):
        leaves = [t.clone().requires_grad_() for t in inputs]
        out = function(*leaves)
        out.backward(dy)
        results.append((out.detach(), *(leaf.grad for leaf in leaves[: 2 + has_residual])))
    torch.testing.assert_close(results[0], results[1])


def test_torch_accepts_the_operators():
    x, weight, residual, rstd = randn(3, 5), randn(5, seed=1), randn(3, 5, seed=2), torch.ones(3)
    ops = torch.ops.kernel_atlas
    torch.library.opcheck(ops.rms_norm_forward.default, (x.clone().requires_grad_(), weight, 1e-6))
    torch.library.opcheck(ops.rms_norm_residual_forward.default, (x.clone().requires_grad_(), residual, None, 1e-6))
    torch.library.opcheck(ops.rms_norm_backward.default, (x, weight, rstd, residual, residual))
    torch.library.opcheck(ops.rms_norm_backward.default, (x, None, rstd, residual, None))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.ones(2, 3, dtype=torch.float64), 3), TypeError, "float64"),
        ((torch.ones(2, 3), 2), ValueError, "normalized_shape"),
        ((torch.ones(2, 3), ()), ValueError, "normalized_shape"),
        ((torch.ones(3), (2, 3)), ValueError, "normalized_shape"),
        ((torch.ones(2, 3), 3, torch.ones(2)), ValueError, "weight of shape"),
        ((torch.ones(2, 3), 3, torch.ones(3).double()), TypeError, "weight in fp32"),
        ((torch.ones(2, 3), 3, None, None, torch.ones(3)), ValueError, "residual of shape"),
        ((torch.ones(2, 3), 3, None, None, torch.ones(2, 3).half()), TypeError, "residual of the input's"),
    ],
    ids=["float64", "wrong size", "no size", "too many sizes", "short weight", "mixed dtypes", "broadcast residual",
         "mixed residual"],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(arguments, error, message):
    with pytest.raises(error, match=message):
        rms_norm(*arguments)


def test_rows_of_128_kib_are_read_once():
    def preferred(dtype, n):
        return DECLARATION.forward.preferred(case(dtype, m=8, n=n, residual=False), GPUS["h200"]).name

    assert [preferred("fp32", 2**15), preferred("bf16", 2**15)] == ["late", "late"]
    assert preferred("fp32", 2**16) == "stream"
    late = DECLARATION.forward.variant("late")
    assert "short" in late.unsupported(case("fp32", m=8, n=4096, residual=False), GPUS["h200"])
    assert "16-byte" in late.unsupported(case("bf16", m=8, n=20_001, residual=False), GPUS["h200"])


@pytest.mark.parametrize(
    ("m", "n", "dtype", "residual", "expected"),
    [
        (65536, 80, "fp16", False, (16, 2)),  # 6.94 us for 7.53 (H200, all of these)
        (40000, 96, "bf16", False, (16, 2)),  # 5.44 for 6.12
        (32768, 128, "bf16", False, (16, 2)),  # 5.20 for 5.63
        (2**18, 128, "bf16", False, (8, 2)),  # more than L2 holds: not measured
        (12000, 96, "bf16", False, (8, 1)),  # fewer programs than eight an SM
        (40000, 96, "bf16", True, (8, 1)),
        (40000, 96, "fp32", False, (4, 1)),
    ],
)
def test_untuned_many_short_rows_are_sixteen_a_program(m, n, dtype, residual, expected):
    problem = case(dtype, m=m, n=n, residual=residual)
    variant = DECLARATION.forward.preferred(problem, GPUS["h200"])
    config = variant.default(problem, GPUS["h200"])
    assert tuple(config.values()) == expected
    assert config in list(variant.configs(problem, GPUS["h200"]))


@pytest.mark.parametrize("n", [72, 128])
def test_sixteen_short_rows_of_two_warps_agree_with_float64(n):
    drawn = Problem(DECLARATION, "forward", case("fp16", m=37, n=n, residual=False), torch.device("cpu"), seed=1)
    outputs = DECLARATION.forward.variant("one_pass").launch(**drawn.inputs, config={"BLOCK_M": 16, "num_warps": 2})
    assert not drawn.judge(outputs).reason


def test_untuned_gradients_of_short_rows_leave_fewer_partial_rows_to_add_up():
    """A program of the second launch adds up 32 columns: of 96 they are three, which read all partial rows."""
    for n, programs in ((96, 2), (1024, 4)):
        problem = case("bf16", m=22488, n=n, residual=False)
        config = DECLARATION.backward.preferred(problem, GPUS["h200"]).default(problem, GPUS["h200"])
        assert config["PROGRAMS_PER_SM"] == programs


@pytest.mark.parametrize("name", GPUS)
def test_defaults_are_points_of_the_space_that_fit_and_every_case_has_a_variant(name):
    for work in DECLARATION.passes.values():
        for problem in (*DECLARATION.cases(GPUS[name]), *DECLARATION.edge_cases):
            able = [v for v in work.variants if not v.unsupported(problem, GPUS[name])]
            assert able
            for variant in able:
                assert_default_fits(variant, problem, GPUS[name])
