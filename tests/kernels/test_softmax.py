"""Softmax on the interpreter: values, special values, dimensions, gradients, refusals; and what it compiles to."""

import pytest
import torch
from atlas.config import load_gpus
from atlas.declaration import case
from atlas.declaration.hardware import INTERPRETER
from atlas.gpus import gpu
from atlas.validation.problems import Problem

from kernels.softmax import DECLARATION, softmax

CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if "cpu" not in block["target"]}
VARIANTS = [(direction, v) for direction, work in DECLARATION.passes.items() for v in work.variants]
IDS = [f"{direction}-{v.name}" for direction, v in VARIANTS]


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(found, expected, dtype=torch.float32):
    """By twice the unit roundoff of the dtype: the interpreter truncates where GPUs round to bf16."""
    tolerance = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance * 0.05, equal_nan=True)


@pytest.mark.parametrize(("direction", "variant"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("problem", DECLARATION.edge_cases, ids=str)
def test_edge_cases_agree_with_float64(problem, direction, variant):
    if variant.unsupported(problem, INTERPRETER):
        pytest.skip(variant.unsupported(problem, INTERPRETER))
    drawn = Problem(DECLARATION, direction, problem, CPU, seed=1)
    assert not drawn.judge(variant.launch(**drawn.inputs, config=variant.default(problem, INTERPRETER))).reason


@pytest.mark.parametrize(("direction", "variant"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("n", [72, 4104], ids=["short", "tail"])  # rows of whole vectors; the longer has a tail block
def test_every_config_gives_the_same_rows(direction, variant, n):
    problem = case("fp16", m=6, n=n)
    drawn = Problem(DECLARATION, direction, problem, CPU, seed=2)
    configs = list(variant.configs(problem, INTERPRETER))
    assert configs
    for config in configs:
        assert not drawn.judge(variant.launch(**drawn.inputs, config=config)).reason, config


@pytest.mark.parametrize("variant", DECLARATION.forward.variants, ids=lambda v: v.name)
@pytest.mark.parametrize("n", [33, 2100], ids=["one block", "two blocks"])
def test_nan_and_infinities_spread_as_in_torch(variant, n):
    x = randn(8, n)
    x[0, 3] = float("nan")
    x[1, 5] = float("inf")
    x[2, :] = float("-inf")  # no finite value: NaN
    x[3, :-1] = float("-inf")  # a running maximum that stays at -inf until the last element
    x[4, 1:] = float("-inf")
    x[5] = torch.finfo(torch.float32).min  # the value a running maximum starts from
    x[6, 7] = 3e38
    y = variant.launch(x, config=variant.default(case("fp32", m=8, n=n), INTERPRETER))
    assert_close(y, torch.softmax(x.double(), -1))


@pytest.mark.parametrize("variant", DECLARATION.forward.variants, ids=lambda v: v.name)
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool])
def test_other_dtypes_are_refused_by_name(dtype):
    with pytest.raises(TypeError, match=str(dtype)):
        softmax(torch.ones(2, 3, dtype=dtype))


@pytest.mark.parametrize(("shape", "dim"), [((2, 3), 2), ((2, 3), -3), ((), 1)], ids=str)
def test_a_dimension_that_is_not_there_is_refused(shape, dim):
    with pytest.raises(IndexError, match=f"dim {dim}"):
        softmax(torch.zeros(shape), dim)


def test_rows_too_long_for_registers_are_streamed():
    # at one register an element forward and two backward, 2^15 are half of an SM's 2^16 or all of them
    for work in DECLARATION.passes.values():
        assert work.preferred(case("bf16", m=8, n=2**15), GPUS["h200"]) is work.variants[1]
        assert work.preferred(case("bf16", m=8, n=2**13), GPUS["h200"]) is work.variants[0]


@pytest.mark.parametrize("name", GPUS)
def test_defaults_are_points_of_the_space_that_fit(name):
    for work in DECLARATION.passes.values():
        for problem in (*DECLARATION.cases(GPUS[name]), *DECLARATION.edge_cases):
            for variant in work.variants:
                if not variant.unsupported(problem, GPUS[name]):
                    config = variant.default(problem, GPUS[name])
                    assert dict(config) in list(variant.configs(problem, GPUS[name])), (variant.name, str(problem))
