"""torch.func and forward-mode derivatives of every function that has a gradient: right, or an error that says so."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap

import kernels.nn

from .table import CALLS, DIFFERENTIABLE, FP32, assert_near, tensors, weighted

NAMES = ("jvp", "forward", "vmap", "batch", "functorch", "torch.func", "transform", "derivative")
"""An error is clear when it names what it refuses: one of these words."""

FORWARD = [*DIFFERENTIABLE, *(call for call in CALLS if call.function == "decode_attention")]
"""What has no gradient must not answer that the derivative is zero either."""


def refused(error):
    """True for an error that tells a user what cannot be had; one that speaks of torch's insides is none."""
    words = str(error)
    assert isinstance(error, RuntimeError | NotImplementedError), error
    assert "setup_context" not in words and "INTERNAL ASSERT" not in words, words
    assert any(name in words.lower() for name in NAMES), words
    return True


def floats(call):
    return tuple(call.shapes)


def tangents(inputs, names):
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(inputs[n].shape, generator=generator).to(inputs[n]) for n in names)


def pure(run, call, inputs, names):
    """``run`` as a function of the named inputs alone; floating results only, which are what derivatives are of."""

    def function(*values):
        results = run(inputs | dict(zip(names, values, strict=True)))
        return tuple(x for x in results if x.is_floating_point())

    return function  # fmt: skip


def wide(call, inputs):
    return {name: x.double() if name in call.shapes else x for name, x in inputs.items()}


def exact_jvp(call, inputs, names, along):
    """The derivative along ``along`` by torch, in float64."""
    doubled = wide(call, inputs)
    function = pure(call.run_exact, call, doubled, names)
    return jvp(function, tuple(doubled[name] for name in names), tuple(x.double() for x in along))[1]


@pytest.mark.parametrize("call", FORWARD, ids=lambda call: call.label)
def test_jvp_is_right_or_refused(call, device):
    inputs, names = call.draw(device), floats(call)
    along = tangents(inputs, names)
    try:
        _, found = jvp(pure(call.run, call, inputs, names), tuple(inputs[n] for n in names), along)
    except Exception as error:
        assert refused(error)
        return
    assert_near(found, exact_jvp(call, inputs, names, along), call, call.dtype, "tangent")


@pytest.mark.parametrize("call", FORWARD, ids=lambda call: call.label)
def test_a_dual_tensor_is_never_answered_without_its_tangent(call, device):
    inputs, names = call.draw(device), floats(call)
    along = tangents(inputs, names)
    with forward_ad.dual_level():
        dual = {name: forward_ad.make_dual(inputs[name], t) for name, t in zip(names, along, strict=True)}
        try:
            results = call.run(inputs | dual)
            found = [forward_ad.unpack_dual(x).tangent for x in results if x.is_floating_point()]
        except Exception as error:
            assert refused(error)
            return
    assert all(x is not None for x in found), "the tangent is lost in silence"
    assert_near(tuple(found), exact_jvp(call, inputs, names, along), call, call.dtype, "tangent")


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=lambda call: call.label)
def test_torch_func_grad_is_right_or_refused(call, device):
    inputs, names = call.draw(device), call.wanting
    places = tuple(range(len(names)))
    function = pure(call.run, call, inputs, names)
    try:
        found = grad(lambda *values: weighted(function(*values)), places)(*(inputs[n] for n in names))
    except Exception as error:
        assert refused(error)
        return
    doubled = wide(call, inputs)
    exact = pure(call.run_exact, call, doubled, names)
    expected = grad(lambda *values: weighted(exact(*values)), places)(*(doubled[n] for n in names))
    assert_near(found, expected, call, call.dtype, "gradient")


def two_of(call, device):
    """Two draws, and the named inputs of both in one batch."""
    one, two = call.draw(device), call.draw(device, seed=1)
    return one, two, tuple(torch.stack([one[name], two[name]]) for name in floats(call))


BATCHED = [call for call in CALLS if call.shapes]


@pytest.mark.parametrize("call", BATCHED, ids=lambda call: call.label)
def test_vmap_is_right_or_refused(call, device):
    one, two, both = two_of(call, device)
    names = floats(call)

    def run(*values):
        return call.run(one | dict(zip(names, values, strict=True)))

    try:
        found = vmap(run)(*both)
    except Exception as error:
        assert refused(error)
        return
    for place, inputs in enumerate((one, two)):
        alone = call.run(one | {name: inputs[name] for name in names})
        assert_near(tuple(x[place].float() for x in found), tuple(x.float() for x in alone), call, call.dtype)


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=lambda call: call.label)
def test_gradients_under_vmap_are_right_or_refused(call, device):
    one, two, both = two_of(call, device)
    names = floats(call)
    places = tuple(names.index(name) for name in call.wanting)

    def loss(run, inputs):
        function = pure(run, call, inputs, names)
        return lambda *values: weighted(function(*values))

    try:
        found = vmap(grad(loss(call.run, one), places))(*both)
    except Exception as error:
        assert refused(error)
        return
    for place, inputs in enumerate((one, two)):
        doubled = wide(call, one | {name: inputs[name] for name in names})
        expected = grad(loss(call.run_exact, doubled), places)(*(doubled[name] for name in names))
        assert_near(tuple(x[place] for x in found), expected, call, call.dtype, "gradient")


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=lambda call: call.label)
def test_a_vmapped_forward_has_right_gradients_or_is_refused(call, device):
    """Batched inside, differentiated outside: a loss over an ensemble of inputs."""
    one, two, both = two_of(call, device)
    names = floats(call)
    both = [x.requires_grad_() if name in call.wanting else x for name, x in zip(names, both, strict=True)]
    try:
        results = vmap(pure(call.run, call, one, names))(*both)
        (weighted(tuple(x[0] for x in results)) + weighted(tuple(x[1] for x in results))).backward()
    except Exception as error:
        assert refused(error)
        return
    for place, inputs in enumerate((one, two)):
        doubled = call.leaves(wide(call, one | {name: inputs[name] for name in names}))
        weighted(call.run_exact(doubled)).backward()
        for name in call.wanting:
            found = both[names.index(name)].grad
            assert found is not None, f"no gradient of {name}"
            assert_near(found[place], doubled[name].grad, call, call.dtype, f"gradient of {name}")


def test_a_model_s_gradients_for_each_sample_are_right_or_refused(device):
    """``vmap(grad(loss))`` over samples, as torch's tutorial on gradients of each sample has it."""
    model = torch.nn.Sequential(kernels.nn.Linear(32, 24, activation="gelu"), kernels.nn.LayerNorm(24)).to(device)
    twin = torch.nn.Sequential(torch.nn.Linear(32, 24), torch.nn.GELU(), torch.nn.LayerNorm(24)).to(device)
    values = {name: x.detach() for name, x in model.named_parameters()}
    of_twin = dict(zip(dict(twin.named_parameters()), values.values(), strict=True))
    x = torch.randn(3, 2, 32, generator=torch.Generator().manual_seed(0)).to(device)

    def loss(made):
        return lambda parameters, sample: functional_call(made, parameters, (sample,)).square().sum()

    try:
        found = vmap(grad(loss(model)), in_dims=(None, 0))(values, x)
    except Exception as error:
        assert refused(error)
        return
    expected = vmap(grad(loss(twin)), in_dims=(None, 0))(of_twin, x)
    for a, b in zip(tensors(found), tensors(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert {x.dtype for x in tensors(found)} == {FP32}
