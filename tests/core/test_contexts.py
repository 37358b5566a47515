"""What surrounds a call of an operator: devices that compute nothing, lazy tensors, subclasses, modes of torch.

The operator computes on the CPU by torch; what the kernels do in these contexts is in ``tests/kernels``.
"""

import threading

import pytest
import torch
from atlas.operators import CustomOperator, Differentiable, descriptors, launch, launching
from torch.autograd import forward_ad

_count = iter(range(1000))


def operator(run, schema="(Tensor x) -> Tensor", fake=torch.empty_like, **options):
    return CustomOperator(f"context_{next(_count)}", schema, run=run, fake=fake, **options)


def cube(x):
    """x^3 by memory alone, as a kernel reads it: torch's lazy negation is not seen."""
    seen = torch.empty(0).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())
    return seen * seen * seen


def cubes(backward=None):
    def save(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def pull(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy

    return Differentiable(operator(cube), save, backward or pull)


def test_a_meta_tensor_is_not_computed_on():
    def run(x):
        raise AssertionError("a kernel was launched on memory that is not there")

    op = operator(run)
    for function in (op, Differentiable(op, lambda ctx, inputs, output: None, lambda ctx, dy: dy)):
        out = function(torch.empty(3, 4, device="meta", requires_grad=True))
        assert out.is_meta and out.shape == (3, 4)


def test_a_lazily_negated_tensor_is_resolved_before_its_memory_is_read():
    z = torch.randn(5, dtype=torch.complex64)
    lazy = z.conj().imag
    assert lazy.is_neg()
    for function in (operator(cube), cubes()):
        torch.testing.assert_close(function(lazy), (-z.imag) ** 3)


def test_a_gradient_is_taken_at_a_lazily_negated_tensor():
    lazy = torch.randn(5, dtype=torch.complex64).conj().imag.detach().requires_grad_()
    assert lazy.is_neg()
    cubes()(lazy).sum().backward()
    torch.testing.assert_close(lazy.grad.resolve_neg(), 3 * lazy.detach() ** 2)


def test_a_trivial_subclass_comes_back_and_does_not_recurse():
    class Named(torch.Tensor):
        pass

    x = torch.randn(4)
    for function in (operator(cube), cubes()):
        out = function(x.as_subclass(Named))
        assert type(out) is Named
        torch.testing.assert_close(out.as_subclass(torch.Tensor), x**3)


def test_derivatives_in_forward_mode_come_from_the_gradient():
    function, x, t = cubes(), torch.randn(4), torch.randn(4)
    torch.testing.assert_close(torch.func.jvp(function, (x,), (t,))[1], 3 * x * x * t)
    with forward_ad.dual_level():
        out = function(forward_ad.make_dual(x, t))
        torch.testing.assert_close(forward_ad.unpack_dual(out).tangent, 3 * x * x * t)
    torch.testing.assert_close(torch.func.jacfwd(torch.func.grad(lambda x: function(x).sum()))(x), torch.diag(6 * x))


@pytest.mark.parametrize("transform", ["jvp", "dual", "grad"])
def test_what_has_no_derivative_says_so(transform):
    op, x = operator(cube), torch.randn(4)
    with pytest.raises(NotImplementedError, match=r"context_\d+ has no"):
        if transform == "jvp":
            torch.func.jvp(op, (x,), (x,))
        elif transform == "grad":
            torch.func.grad(lambda x: op(x).sum())(x)
        else:
            with forward_ad.dual_level():
                op(forward_ad.make_dual(x, x))


def test_a_gradient_that_cannot_be_differentiated_gives_no_derivative_in_forward_mode():
    inner = operator(lambda x, dy: 3 * x * x * dy, "(Tensor x, Tensor dy) -> Tensor", lambda x, dy: torch.empty_like(x))
    function = cubes(lambda ctx, dy: inner(*ctx.saved_tensors, dy))
    x = torch.randn(4)
    torch.testing.assert_close(torch.func.grad(lambda x: function(x).sum())(x), 3 * x * x)
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(function, (x,), (x,))


def test_a_batch_of_calls_is_each_call():
    function, x = cubes(), torch.randn(3, 4)
    torch.testing.assert_close(torch.func.vmap(function)(x), x**3)
    torch.testing.assert_close(torch.func.vmap(operator(cube), in_dims=1)(x), (x**3).t())
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(lambda x: function(x).sum()))(x), 3 * x * x)


def test_who_runs_an_operator_is_not_in_autocast():
    """The dtypes are settled before an operator is called; a product in its launcher must not change them."""
    product = operator(lambda x: x @ x)

    def pull(ctx, dy):
        return dy @ dy

    x = torch.randn(3, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = Differentiable(product, lambda ctx, inputs, output: None, pull)(x)
        (gradient,) = torch.autograd.grad(out, x, torch.ones(3, 3))
        assert out.dtype == gradient.dtype == torch.float32


def test_a_descriptor_is_made_in_a_thread_that_has_the_devices_context(monkeypatch):
    """In a new thread nothing has bound it, and to describe a tensor is a call of the driver, which asks for it."""
    asked = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: asked.append((threading.get_ident(), device)))
    maps = descriptors.Maps(lambda address: asked.append("described") or address)

    def work():
        maps[64], maps[128]
        launching.bind_context()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [item if isinstance(item, str) else item[1] for item in asked] == [1, "described", "described"]


def test_a_kernel_is_not_launched_on_memory_that_is_not_there():
    """On a GPU that is an illegal access, after which the process has lost it."""
    with pytest.raises(RuntimeError, match="meta"):
        launch(None, (1,), torch.empty(3, device="meta"))


def test_a_kernel_is_not_launched_on_a_tensor_whose_memory_holds_the_opposite():
    with pytest.raises(RuntimeError, match="resolve_neg"):
        launch(None, (1,), torch.randn(3, dtype=torch.complex64).conj().imag)
