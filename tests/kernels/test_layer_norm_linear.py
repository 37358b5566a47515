"""Layer norm and linear in one product, on the interpreter: values, accuracy, gradients, refusals."""

import pytest
import torch
from atlas.declaration.hardware import INTERPRETER
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from atlas.validation.problems import Problem
from defaults_under_test import assert_default_fits
from torch.nn import functional

from kernels.layer_norm_linear import DECLARATION, layer_norm_linear

CPU = torch.device("cpu")
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", "match" in block)}


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def drawn(shape, n, has_weight=True, has_bias=True, has_c=True, dtype=torch.float32):
    """(input, linear_weight, linear_bias, weight, bias) that want gradients; None where there is none."""
    k = shape[-1]
    wanted = ((shape, True), ((n, k), True), ((n,), has_c), ((k,), has_weight), ((k,), has_bias))
    return [
        randn(*size, seed=seed, dtype=dtype).requires_grad_() if there else None
        for seed, (size, there) in enumerate(wanted)
    ]


def twin(x, w, c, weight, bias, eps=1e-5):
    return functional.linear(functional.layer_norm(x, x.shape[-1:], weight, bias, eps), w, c)


def exact(tensors):
    return [t if t is None else t.detach().double().requires_grad_() for t in tensors]


def assert_close(found, expected, tolerance=2e-5):
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("variant", DECLARATION.forward.variants, ids=lambda v: v.name)
@pytest.mark.parametrize("problem", DECLARATION.edge_cases, ids=str)
def test_edge_cases_agree_with_float64(problem, variant):
    problem_drawn = Problem(DECLARATION, "forward", problem, CPU, seed=1)
    outputs = variant.launch(**problem_drawn.inputs, config=variant.default(problem, INTERPRETER))
    assert not problem_drawn.judge(outputs).reason


@pytest.mark.parametrize(
    "has", [(True, True, True), (False, True, False), (True, False, False), (False, False, True)], ids=str
)
def test_weight_and_biases_are_optional_forward_and_backward(has):
    given = drawn((2, 5, 24), 20, *has)
    reference = exact(given)
    expected = twin(*reference)
    dy = randn(*expected.shape, seed=9)
    y = layer_norm_linear(*given)
    assert_close(y, expected.detach())
    y.backward(dy)
    expected.backward(dy.double())
    for found, like in zip(given, reference, strict=True):
        if found is not None:
            assert_close(found.grad, like.grad)


def test_a_mean_far_from_zero_cancels_nothing():
    # x @ (weight * W)^T - mean * colsum would subtract numbers of 1e3 * sqrt(k) from each other
    x, w = randn(8, 64) + 1e3, randn(16, 64, seed=1)
    assert_close(layer_norm_linear(x, w), twin(x.double(), w.double(), None, None, None), 2e-3)


def test_gradients_only_of_what_wants_them():
    x, w, c, weight, bias = drawn((4, 16), 8)
    x, weight, bias = x.detach(), weight.detach(), bias.detach()
    layer_norm_linear(x, w, c, weight, bias).sum().backward()
    assert w.grad is not None and c.grad is not None and x.grad is None


def test_second_derivatives_agree_with_float64_autograd():
    def second(function, tensors):
        x, w = tensors[:2]
        (first,) = torch.autograd.grad(function(*tensors).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (x, w))

    given = drawn((3, 16), 8)
    for found, expected in zip(second(layer_norm_linear, given), second(twin, exact(given)), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)


def test_torch_compile_takes_it_whole_forward_and_backward():
    given = drawn((6, 16), 8)
    compiled = torch.compile(lambda *tensors: layer_norm_linear(*tensors), fullgraph=True, backend="aot_eager")
    expected = twin(*exact(given))
    y = compiled(*given)
    assert_close(y, expected.detach())
    y.sum().backward()
    assert all(tensor.grad is not None for tensor in given)


def test_torch_finds_nothing_wrong_with_the_operator():
    x, w, c, weight, bias = drawn((4, 16), 8)
    torch.library.opcheck(torch.ops.kernel_atlas.layer_norm_linear.default, (x, weight, bias, 1e-5, w, c))


def test_layouts_that_are_not_contiguous_and_empty_inputs_are_taken():
    x, w = randn(16, 12).t(), randn(16, 8, seed=1).t()
    assert_close(layer_norm_linear(x, w), twin(x.double(), w.double(), None, None, None))
    assert layer_norm_linear(torch.empty(0, 16), w).shape == (0, 8)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.ones(2, 3, dtype=torch.float64), torch.ones(4, 3)), TypeError, "float64"),
        ((torch.ones(2, 3), torch.ones(3, 4)), ValueError, "linear_weight"),
        ((torch.ones(2, 3), torch.ones(4, 3), torch.ones(3)), ValueError, "linear_bias of shape"),
        ((torch.ones(2, 3), torch.ones(4, 3).half()), TypeError, "linear_weight of the input's"),
        ((torch.ones(2, 3), torch.ones(4, 3), None, torch.ones(4)), ValueError, "weight of shape"),
    ],
    ids=["float64", "W transposed", "long bias", "mixed dtypes", "long weight"],
)
def test_what_does_not_fit_is_refused_by_name(arguments, error, message):
    with pytest.raises(error, match=message):
        layer_norm_linear(*arguments)


@pytest.mark.parametrize("name", GPUS)
def test_defaults_are_points_of_the_space_that_fit(name):
    for problem in DECLARATION.cases(GPUS[name]):
        for variant in DECLARATION.forward.variants:
            assert_default_fits(variant, problem, GPUS[name])
