"""vector_add on the interpreter: what it takes, what it refuses, gradients, and its operator under torch.compile."""

import pytest
import torch

from kernels.vector_add import _forward, vector_add


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_any_shape_is_added_as_torch_adds(dtype):
    for shape in ((), (1,), (3, 5), (2, 3, 700)):  # no, one and several dimensions; a tail of a block
        x, y = randn(*shape, dtype=dtype), randn(*shape, dtype=dtype, seed=1)
        # the interpreter truncates where GPUs round to bf16
        torch.testing.assert_close(vector_add(x, y), x + y, rtol=2**-7 if dtype is torch.bfloat16 else 0, atol=0)


def test_layouts_that_are_not_contiguous_are_read_through_their_strides():
    base, y = randn(40, 30), randn(30, 40, seed=1)
    assert torch.equal(vector_add(base.t(), y), base.t() + y)
    assert torch.equal(vector_add(base[:, ::2], base[:, 1::2]), base[:, ::2] + base[:, 1::2])
    assert torch.equal(vector_add(base[:1].expand(8, 30), base[:8]), base[:1] + base[:8])


def test_a_tensor_may_be_added_to_itself():
    x = randn(70)
    assert torch.equal(vector_add(x, x), 2 * x)


@pytest.mark.parametrize("shape", [(0,), (3, 0)], ids=str)
def test_empty_tensors_give_an_empty_tensor(shape):
    x = torch.empty(shape, requires_grad=True)
    out = vector_add(x, torch.empty(shape))
    out.sum().backward()
    assert out.shape == shape and x.grad.shape == shape


def test_gradients_are_the_incoming_one_for_both_and_only_where_wanted():
    x, y, dout = randn(5, 6).requires_grad_(), randn(5, 6, seed=1).requires_grad_(), randn(5, 6, seed=2)
    vector_add(x, y).backward(dout)
    assert torch.equal(x.grad, dout) and torch.equal(y.grad, dout)
    assert not vector_add(x.detach(), y.detach()).requires_grad


def test_second_derivatives_pass_through():
    x, y = randn(4).requires_grad_(), randn(4, seed=1)
    (first,) = torch.autograd.grad((vector_add(x, y) ** 3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 6 * (x + y))


def test_other_dtypes_shapes_and_mixtures_are_refused_by_name():
    with pytest.raises(TypeError, match="float64"):
        vector_add(torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    with pytest.raises(TypeError, match="float16"):
        vector_add(torch.ones(2), torch.ones(2).half())
    for pair in ((torch.ones(2), 1.0), (1, torch.ones(2)), (1.0, 1.0)):
        with pytest.raises(TypeError, match="no numbers"):
            vector_add(*pair)
    with pytest.raises(ValueError, match=r"\(2,\)"):
        vector_add(torch.ones(2, 3), torch.ones(2))


def test_it_compiles_into_one_graph_forward_and_backward():
    x, y, dout = randn(33).requires_grad_(), randn(33, seed=1), randn(33, seed=2)
    function = torch.compile(lambda x, y: vector_add(x, y).sin(), fullgraph=True, backend="aot_eager")
    function(x, y).backward(dout)
    torch.testing.assert_close(x.grad, dout * (x + y).cos().detach())


def test_the_operator_keeps_torchs_rules():
    x = randn(20).requires_grad_()
    torch.library.opcheck(_forward.op, (x, randn(20, seed=1)))
