"""Operands that are broadcast: values, layouts of results, gradients, refusals; on the interpreter."""

import pytest
import torch

from kernels.broadcast.shapes import empty_result, merged
from kernels.multiply_add import multiply_add
from kernels.vector_add import vector_add


def randn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


PAIRS = {
    "a row": (randn(4, 5, 6), randn(6)),
    "a column": (randn(4, 5, 6), randn(5, 1)),
    "each matrix": (randn(4, 5, 6), randn(4, 1, 1)),
    "a row of each matrix": (randn(4, 5, 6), randn(4, 1, 6)),
    "channels": (randn(2, 3, 4, 5), randn(3, 1, 1)),
    "a number": (randn(4, 5), randn()),
    "an outer sum": (randn(5, 1), randn(1, 7)),
    "one element": (randn(1, 1), randn(1)),
    "by columns": (randn(6, 5).t(), randn(6)),
    "channels last": (randn(2, 3, 4, 5).to(memory_format=torch.channels_last), randn(3, 1, 1)),
    "expanded": (randn(5, 1).expand(5, 6), randn(5, 6)),
    "each second": (randn(5, 12)[:, ::2], randn(5, 6)),
    "other order": (randn(4, 5, 6).transpose(0, 2), randn(6, 5, 4)),
    "many axes": (randn(2, 3, 2, 3, 2, 3), randn(1, 3, 1, 3, 1, 3)),
    "expanded twice": (randn(5, 1).expand(5, 6), randn(1).expand(5, 6)),
}


@pytest.mark.parametrize("x, y", PAIRS.values(), ids=PAIRS)
def test_values_layouts_and_gradients_are_torch_s(x, y):
    ours = [t.detach().requires_grad_() for t in (x, y)]
    theirs = [t.detach().double().requires_grad_() for t in (x, y)]
    found, expected = vector_add(*ours), torch.add(*theirs)
    torch.testing.assert_close(found, expected.float())
    assert found.stride() == torch.add(x, y).stride()
    weights = randn(*found.shape)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shapes", [((4, 1, 6), (5, 6), (4, 5, 1)), ((), (3, 4), (4,)), ((3, 4), (), ())])
def test_products_are_torch_s_to_the_second_derivative(shapes):
    inputs = [randn(*shape).double() for shape in shapes]
    ours = [x.float().requires_grad_() for x in inputs]
    theirs = [x.requires_grad_() for x in inputs]
    found, expected = multiply_add(*ours, value=0.5), torch.addcmul(*theirs, value=0.5)
    torch.testing.assert_close(found, expected.float())
    first = torch.autograd.grad((found**2).sum(), ours, create_graph=True)
    wanted = torch.autograd.grad((expected**2).sum(), theirs, create_graph=True)
    second = torch.autograd.grad(sum((x**2).sum() for x in first), ours)
    for one, other in zip(
        (*first, *second), (*wanted, *torch.autograd.grad(sum((x**2).sum() for x in wanted), theirs)), strict=True
    ):
        torch.testing.assert_close(one, other.float(), rtol=1e-4, atol=1e-4)


def test_a_number_of_another_dtype_does_not_widen_the_result():
    x, number = randn(4, 5).to(torch.bfloat16), torch.tensor(0.3, requires_grad=True)
    found = vector_add(x, number)
    assert found.dtype == torch.bfloat16 == torch.add(x, number).dtype
    found.sum().backward()
    assert number.grad.dtype == torch.float32 and float(number.grad) == 20


def test_axes_are_merged_where_all_operands_allow_it():
    x, y = randn(4, 5, 6), randn(5, 6)
    assert merged([x, y]) == ([4, 30], [[30, 1], [0, 1]])
    assert merged([x, x]) == ([120], [[1], [1]])
    assert empty_result([x, y], torch.float32).is_contiguous()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((randn(3, 4), randn(3)), ValueError, "broadcast"),
        ((randn(3, 4), randn(4).half()), TypeError, "one dtype"),
        ((randn(3, 4), randn(4).double()), TypeError, "float64"),
        ((randn(3, 4), 1.0), TypeError, "no numbers"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(arguments, error, words):
    with pytest.raises(error, match=words):
        vector_add(*arguments)


@pytest.mark.parametrize("dynamic", [False, True], ids=["", "of unknown sizes"])
def test_it_compiles_into_one_graph(dynamic):
    inputs = [[randn(3, 7, 6).requires_grad_(), randn(7, 1).requires_grad_()] for _ in range(2)]

    def function(x, y, add):
        return add(x.sin(), y).sin()

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for leaves, call, add in zip(inputs, (compiled, function), (vector_add, torch.add), strict=True):
        call(*leaves, add).square().sum().backward()
    for one, other in zip(*inputs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
