"""The table itself: it has every public function, and each call of it gives what torch does, forward and backward."""

import numpy
import pytest
import torch

import kernels
import kernels.nn

from .table import CALLS, DIFFERENTIABLE, FP32, MODULES, assert_near, on, tensors, weighted

COMPARED = [call for call in CALLS if call.torch is not None]


def test_the_table_has_every_public_function_and_every_module(device):
    assert {call.function for call in CALLS} == set(kernels.__all__)
    assert {module.name for module in MODULES} == set(kernels.nn.__all__)
    labels = [call.label for call in CALLS]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("call", COMPARED, ids=lambda call: call.label)
def test_a_plain_call_gives_what_torch_gives(call, device):
    inputs = call.draw(device)
    found = call.run(inputs)
    assert_near(found, call.run_exact(inputs), call, call.dtype)
    assert [x.dtype for x in found] == [x.dtype for x in call.run_torch(inputs)]


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=lambda call: call.label)
def test_gradients_are_those_of_torch_in_float64(call, device):
    inputs = call.leaves(call.draw(device))
    weighted(call.run(inputs)).backward()
    wide = call.leaves({name: x.double() if name in call.shapes else x for name, x in call.draw(device).items()})
    weighted(call.run_exact(wide)).backward()
    for name in call.wanting:
        assert inputs[name].grad.dtype == inputs[name].dtype
        assert_near(inputs[name].grad, wide[name].grad, call, call.dtype, f"gradient of {name}")


@pytest.mark.parametrize("eps", [numpy.float32(0.1), torch.tensor(0.1), 1], ids=["NumPy's", "tensor", "int"])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_the_eps_of_a_norm_may_be_any_number(name, eps, device):
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)).to(device)
    found = getattr(kernels, name)(x, (40,), eps=eps)
    torch.testing.assert_close(found, getattr(torch.nn.functional, name)(x, (40,), eps=float(eps)))


NUMBERS = {
    "scale": (0.25, lambda x, n: kernels.scaled_dot_product_attention(x, x, x, scale=n)),
    "negative scale": (-0.25, lambda x, n: kernels.scaled_dot_product_attention(x, x, x, scale=n, window=(2, 0))),
    "longest lengths": (5, lambda x, n: kernels.attention_varlen(*(x[:, 0],) * 3, *(_ends(x),) * 2, n, n)[0]),
    "ignored class": (2, lambda x, n: kernels.cross_entropy(x[0, 0], _classes(x), ignore_index=n)),
    "ignored class, weights": (
        2, lambda x, n: kernels.cross_entropy(x[0, 0], _classes(x), x[0, 0, 0].detach(), ignore_index=n)
    ),
    "ignored class of a layer": (
        2, lambda x, n: kernels.linear_cross_entropy(x[0, 0], x[0, 0, 0].expand(9, -1), _classes(x), ignore_index=n)
    ),
    "padding": (2, lambda x, n: kernels.embedding(_classes(x), x[0, 0], n)),
    "seed": (2, lambda x, n: kernels.dropout(x, 0.5, seed=n)),
    "group of 4 bits": (32, lambda x, n: kernels.linear_w4a16(x.half(), kernels.pack_w4(_weight(x), n))),
    "group of 8 bits": (32, lambda x, n: kernels.linear_w8a16(x.half(), kernels.pack_w8(_weight(x), n))),
}  # fmt: skip
"""A number of a call, and the call with it."""


def _ends(x):
    return torch.tensor([0, 3, 8], dtype=torch.int32, device=x.device)


def _classes(x):
    return torch.tensor([0, 3, 2, 2, 1], device=x.device)


def _weight(x):
    return torch.linspace(-1, 1, 16 * 32, device=x.device).view(16, 32).half()


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_may_be_numpys(name, device):
    number, run = NUMBERS[name]
    results = []
    for given in (number, numpy.int64(number) if isinstance(number, int) else numpy.float32(number)):
        x = torch.randn(8, 2, 5, 32, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
        out = run(x, given)
        out.float().sum().backward()
        results += [(out, x.grad)]
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_a_module_runs_forward_and_backward(module, device):
    made = module.make().to(device)
    given = [x.requires_grad_() if x.is_floating_point() else x for x in on(module.inputs(), device)]
    results = tensors(made(*given))
    assert all(x.device.type == device and x.dtype in (FP32, torch.float16) for x in results)
    weighted(results).backward()
    for x in (*filter(torch.is_floating_point, given), *made.parameters()):
        assert x.grad is not None and bool(x.grad.isfinite().all())
