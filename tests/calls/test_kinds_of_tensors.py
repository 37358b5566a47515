"""Inputs that are not plain tensors: lazily negated or conjugated ones, and those of a class of their own."""

import pytest
import torch

import kernels

from .table import CALLS, DIFFERENTIABLE, FP32, assert_near, repeats, weighted

DRAWN = [call for call in CALLS if call.shapes]
NEGATED = [pytest.param(call, name, id=f"{call.label}-{name}") for call in DRAWN for name in call.shapes]
IMAGINARY = [asked for asked in NEGATED if asked.values[0].dtype == FP32]
"""torch computes with complex numbers in no lower precision."""


def lazily_negated(x):
    """-x, by a bit that says so: the memory holds x."""
    negated = torch._neg_view(x)
    assert negated.is_neg()
    return negated


def assert_same(found, expected):
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype and torch.equal(x.resolve_neg(), y.resolve_neg())


@pytest.mark.parametrize(("call", "name"), NEGATED)
def test_a_lazily_negated_input_counts_as_what_it_stands_for(call, name, device):
    inputs = call.draw(device)
    resolved = call.run(inputs | {name: -inputs[name]})
    for _ in repeats(device):
        assert_same(call.run(inputs | {name: lazily_negated(inputs[name])}), resolved)
    assert_same(call.run(inputs | {name: -inputs[name]}), resolved)


@pytest.mark.parametrize(("call", "name"), IMAGINARY)
def test_the_imaginary_part_of_a_conjugate_counts_as_what_it_stands_for(call, name, device):
    inputs = call.draw(device)
    z = torch.complex(torch.ones_like(inputs[name]), inputs[name])
    lazy = z.conj().imag
    assert lazy.is_neg()
    found = call.run(inputs | {name: lazy})
    assert_near(found, call.run(inputs | {name: -inputs[name]}), call, call.dtype)


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=lambda call: call.label)
def test_a_gradient_that_arrives_lazily_negated_counts_as_what_it_stands_for(call, device):
    inputs = call.leaves(call.draw(device))
    results = [x for x in call.run(inputs) if x.requires_grad]
    given = [torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x) for x in results]
    wanted = [inputs[name] for name in call.wanting]
    expected = torch.autograd.grad(results, wanted, [-x for x in given], retain_graph=True)
    results = [x for x in call.run(inputs) if x.requires_grad]
    found = torch.autograd.grad(results, wanted, [lazily_negated(x) for x in given])
    assert_near(found, expected, call, call.dtype, "gradient")


class Own(torch.Tensor):
    """A class of tensors that changes nothing."""


def of_torch(call, inputs):
    """The types that torch's way gives; of what torch does not have, the class of the inputs."""
    if not call.torch or call.dtype != FP32 or call.function == "rope_qk":  # torch's way of which is two functions
        return None
    return [type(x) for x in call.run_torch(inputs)]


@pytest.mark.parametrize("every", [True, False], ids=["all inputs", "the first input"])
@pytest.mark.parametrize("call", DRAWN, ids=lambda call: call.label)
def test_a_class_of_tensors_that_changes_nothing_gives_torchs_type_and_the_same_values(call, every, device):
    inputs = call.draw(device)
    plain = call.run(inputs)
    names = list(call.shapes) if every else list(call.shapes)[:1]
    own = inputs | {name: inputs[name].as_subclass(Own) for name in names}
    for _ in repeats(device):
        found = call.run(own)
        assert [type(x) for x in found] == (of_torch(call, own) or [Own] * len(found))
        assert_same([x.as_subclass(torch.Tensor) for x in found], plain)


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=lambda call: call.label)
def test_a_class_of_tensors_that_changes_nothing_has_the_same_gradients(call, device):
    plain = call.leaves(call.draw(device))
    weighted(call.run(plain)).backward()
    inputs = {
        name: x.as_subclass(Own).requires_grad_() if name in call.wanting else x
        for name, x in call.draw(device).items()
    }
    weighted(call.run(inputs)).backward()
    for name in call.wanting:
        assert_near(inputs[name].grad.as_subclass(torch.Tensor), plain[name].grad, call, call.dtype, name)


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=lambda call: call.label)
def test_parameters_give_what_tensors_give(call, device):
    inputs = call.draw(device)
    parameters = {name: torch.nn.Parameter(x) if name in call.wanting else x for name, x in inputs.items()}
    found = call.run(parameters)
    assert_near(found, call.run(inputs), call, call.dtype)
    assert all(type(x) is torch.Tensor for x in found)


SEVERAL = [
    pytest.param(call, name, id=f"{call.label}-{name}")
    for call in CALLS
    if sum(isinstance(x, torch.Tensor) for x in call.draw("cpu").values()) > 1
    for name, x in call.draw("cpu").items()
    if isinstance(x, torch.Tensor)
]


@pytest.mark.parametrize(("call", "name"), SEVERAL)
def test_a_tensor_of_another_device_is_refused(call, name, device):
    """A kernel would read its address on the wrong device."""
    inputs = call.draw(device)
    with pytest.raises((TypeError, ValueError, RuntimeError), match="device|on cpu|on cuda|on meta"):
        call.run(inputs | {name: inputs[name].to("cpu" if device == "cuda" else "meta")})


NO_TENSORS = {
    "gelu": lambda: kernels.gelu(None),
    "silu": lambda: kernels.silu([1.0]),
    "softmax": lambda: kernels.softmax(None, -1),
    "log_softmax": lambda: kernels.log_softmax(1.0),
    "layer_norm": lambda: kernels.layer_norm(None, 6),
    "rms_norm": lambda: kernels.rms_norm(None, (6,)),
    "vector_add": lambda: kernels.vector_add(torch.ones(3), None),
    "multiply_add": lambda: kernels.multiply_add(torch.ones(3), torch.ones(3), None),
    "sum": lambda: kernels.sum(None),
}
"""Calls with what is no tensor, as a program makes them where something was not set."""


@pytest.mark.parametrize("name", NO_TENSORS)
def test_what_is_no_tensor_is_refused_by_the_functions_name(name):
    with pytest.raises(TypeError, match=f"^{name} takes (a tensor|tensors, and no numbers): "):
        NO_TENSORS[name]()
