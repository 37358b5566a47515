"""multiply_add on the interpreter: addcmul's semantics, layouts, gradients, refusals; its operators under torch."""

import pytest
import torch
from atlas.declaration import case, choose
from atlas.declaration.hardware import INTERPRETER
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from atlas.validation.problems import Problem
from defaults_under_test import assert_default_fits

from kernels.multiply_add import DECLARATION, _backward, _forward, multiply_add

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", "match" in block)}


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def three(*shape, dtype=torch.float32):
    return [randn(*shape, dtype=dtype, seed=seed) for seed in range(3)]


def assert_close(found, expected, dtype=torch.float32):
    """By twice the unit roundoff of the dtype: the interpreter truncates where GPUs round to bf16."""
    tolerance = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("problem", DECLARATION.edge_cases, ids=str)
def test_edge_cases_agree_with_float64(problem):
    for direction, work in DECLARATION.passes.items():
        drawn = Problem(DECLARATION, direction, problem, torch.device("cpu"), seed=1)
        variant = work.preferred(problem, INTERPRETER)
        outputs = variant.launch(**drawn.inputs, config=variant.default(problem, INTERPRETER))
        assert not drawn.judge(outputs).reason, direction


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("value", [1, -2.5, 0], ids=str)  # torch's default, an int; a float; nothing to add
def test_any_shape_and_value_as_addcmul(dtype, value):
    for shape in ((), (9,), (3, 5), (2, 3, 70)):
        x, a, b = three(*shape, dtype=dtype)
        expected = torch.addcmul(x.double(), a.double(), b.double(), value=value)
        assert_close(multiply_add(x, a, b, value=value), expected, dtype)


def test_an_intermediate_product_does_not_overflow_fp16():
    x = torch.tensor([-60000.0]).half()
    a = torch.tensor([300.0]).half()
    assert multiply_add(x, a, a).item() == 30000.0  # the product alone, 90000, is past 65504


def halves():
    """The halves of a matrix's rows, as gated layers have them: rows of 40 with gaps of 40."""
    return randn(6, 2, 80).chunk(2, dim=-1)


LAYOUTS = {
    # name: (tensors, whether they reach the operator with gaps between their rows)
    "halves of wide rows": ([randn(6, 2, 40, seed=1), *halves()], True),
    "a row repeated with stride 0": ([randn(8, 30), randn(30, seed=1).expand(8, 30), randn(8, 30, seed=2)], True),
    "rows out of a larger matrix": ([t[2:7, 3:17] for t in three(9, 20)], True),
    "all transposed": ([t.t() for t in three(30, 20)], False),
    "all with channels last": ([t.to(memory_format=torch.channels_last) for t in three(2, 3, 4, 5)], False),
    "one of them transposed": ([randn(20, 30), randn(30, 20, seed=1).t(), randn(20, 30, seed=2)], False),
    "every second element": ([t[:, ::2] for t in three(6, 30)], False),
    "a vector with steps": ([t[::3] for t in three(50)], False),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_with_gaps_are_taken_as_they_lie_and_other_layouts_without_gaps(name, monkeypatch):
    tensors, gaps = LAYOUTS[name]
    seen = []
    monkeypatch.setattr("atlas.operators.operator.choose", lambda *args: seen.append(args[2]) or choose(*args))
    torch.testing.assert_close(multiply_add(*tensors, value=0.5), torch.addcmul(*tensors, value=0.5))
    assert [problem["gaps"] for problem in seen] == [gaps]


@pytest.mark.parametrize("shape", [(0,), (3, 0)], ids=str)
def test_empty_tensors_give_an_empty_tensor(shape):
    tensors = [torch.empty(shape, requires_grad=True) for _ in range(3)]
    multiply_add(*tensors).sum().backward()
    assert all(tensor.grad.shape == shape for tensor in tensors)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_gradients_agree_with_float64_autograd(dtype):
    tensors, dout = three(4, 33, dtype=dtype), randn(4, 33, dtype=dtype, seed=3)
    exact = [tensor.double().requires_grad_() for tensor in tensors]
    torch.addcmul(*exact, value=0.3).backward(dout.double())
    tensors = [tensor.requires_grad_() for tensor in tensors]
    multiply_add(*tensors, value=0.3).backward(dout)
    for found, expected in zip(tensors, exact, strict=True):
        assert_close(found.grad, expected.grad, dtype)


@pytest.mark.parametrize("wanted", range(3))
def test_a_gradient_may_be_wanted_of_one_tensor_alone(wanted):
    tensors = three(3, 8)
    tensors[wanted].requires_grad_()
    multiply_add(*tensors, value=2).sum().backward()
    _, a, b = (tensor.detach() for tensor in tensors)
    torch.testing.assert_close(tensors[wanted].grad, [torch.ones(3, 8), 2 * b, 2 * a][wanted])


def test_gradients_of_halves_flow_into_the_whole():
    wide, x, dout = randn(5, 2, 24).requires_grad_(), randn(5, 2, 12, seed=1), randn(2, 5, 12, seed=2).transpose(0, 1)
    multiply_add(x, *wide.chunk(2, dim=-1)).backward(dout)
    found, wide.grad = wide.grad, None
    torch.addcmul(x, *wide.chunk(2, dim=-1)).backward(dout)
    torch.testing.assert_close(found, wide.grad)


def test_second_derivatives_agree_with_torchs():
    def second(function):
        tensors = [tensor.requires_grad_() for tensor in three(2, 9)]
        first = torch.autograd.grad(function(*tensors, value=0.4).sin().sum(), tensors, create_graph=True)
        return torch.autograd.grad(sum((g * g).sum() for g in first), tensors)

    for found, expected in zip(second(multiply_add), second(torch.addcmul), strict=True):
        torch.testing.assert_close(found, expected)


def test_other_dtypes_shapes_and_mixtures_are_refused_by_name():
    x = torch.ones(2, 3)
    with pytest.raises(TypeError, match="float64"):
        multiply_add(x.double(), x.double(), x.double())
    with pytest.raises(TypeError, match="float16"):
        multiply_add(x, x.half(), x)
    with pytest.raises(ValueError, match=r"\(2, 2\) on cpu"):
        multiply_add(x, x, x[:, :2])


def test_it_compiles_into_one_graph_forward_and_backward():
    wide, x = randn(6, 80).requires_grad_(), randn(6, 40, seed=1).requires_grad_()

    def function(x, wide):
        return multiply_add(x.sin(), *wide.chunk(2, dim=-1), value=0.5)

    found = torch.autograd.grad(torch.compile(function, fullgraph=True, backend="aot_eager")(x, wide).sum(), (x, wide))
    expected = torch.autograd.grad(function(x, wide).sum(), (x, wide))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_the_operators_keep_torchs_rules():
    tensors = [tensor.requires_grad_() for tensor in three(4, 10)]
    torch.library.opcheck(_forward.op, (*tensors, 0.5))
    torch.library.opcheck(_backward.op, (*three(4, 10), 0.5))


@pytest.mark.parametrize(
    ("m", "n", "dtype", "block"),
    [
        (2, 922, "bf16", 512),  # backward 1.24 us for 1.49, forward 1.27 for 1.41 (H200)
        (16, 1408, "bf16", 1024),  # no tail that is read element by element: 1.44 for 1.46, within the noise
        (130, 1001, "bf16", 1024),  # more programs than SMs
        (2, 922, "fp32", 512),
    ],
)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_untuned_few_programs_wait_for_no_long_tail(direction, m, n, dtype, block):
    problem = case(dtype, m=m, n=n, gaps=False)
    variant = DECLARATION.passes[direction].preferred(problem, GPUS["h200"])
    config = variant.default(problem, GPUS["h200"])
    assert config == {"BLOCK": block, "num_warps": 4}
    assert config in list(variant.configs(problem, GPUS["h200"]))


@pytest.mark.parametrize("name", GPUS)
def test_defaults_are_points_of_the_space_that_fit(name):
    for work in DECLARATION.passes.values():
        for problem in (*DECLARATION.cases(GPUS[name]), *DECLARATION.edge_cases):
            assert_default_fits(work.preferred(problem, GPUS[name]), problem, GPUS[name])
