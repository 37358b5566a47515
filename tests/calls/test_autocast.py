"""Inside ``torch.autocast``: dtypes as torch's function of the same name gives them, values and gradients near."""

import pytest
import torch

import kernels.nn

from .table import BF16, CALLS, FP16, FP32, assert_near, repeats, weighted

CAST = [call for call in CALLS if call.torch is not None and call.shapes and call.dtype == FP32]
LOW = {"fp16": FP16, "bf16": BF16}
LABELS = {"all fp32": None, "all low": "all", "the first low": "first"}
"""Which inputs come in autocast's own dtype; in a training loop a layer's input does, and its weights are fp32."""
ASKED = [
    pytest.param(call, given, id=f"{call.label}-{label}")
    for call in CAST
    for label, given in LABELS.items()
    if given != "first" or (call.mixes and len(call.shapes) > 1)
]


def drawn(call, device, given, low):
    inputs = call.draw(device)
    names = {"all": tuple(call.shapes), "first": tuple(call.shapes)[:1], None: ()}[given]
    return {name: x.to(low) if name in names else x for name, x in inputs.items()}


@pytest.mark.parametrize("low", LOW.values(), ids=LOW)
@pytest.mark.parametrize(("call", "given"), ASKED)
def test_dtypes_are_torchs_and_values_near(call, given, low, device):
    inputs = drawn(call, device, given, low)
    with torch.autocast(device, low):
        expected = call.run_torch(inputs)
        found = [call.run(inputs) for _ in repeats(device)][-1]
    assert [x.dtype for x in found] == [x.dtype for x in expected]
    assert_near(found, call.run_exact(inputs), call, low)


@pytest.mark.parametrize("low", LOW.values(), ids=LOW)
@pytest.mark.parametrize(("call", "given"), [a for a in ASKED if a.values[0].wanting])
def test_gradients_have_their_inputs_dtypes_and_are_near(call, given, low, device):
    inputs = call.leaves(drawn(call, device, given, low))
    with torch.autocast(device, low):
        results = call.run(inputs)
    weighted(results).backward()
    wide = call.leaves({n: x.double() if n in call.shapes else x for n, x in drawn(call, device, given, low).items()})
    weighted(call.run_exact(wide)).backward()
    for name in call.wanting:
        assert inputs[name].grad is not None and inputs[name].grad.dtype == inputs[name].dtype, name
        assert_near(inputs[name].grad, wide[name].grad, call, low, f"gradient of {name}")


@pytest.mark.parametrize("call", CAST, ids=lambda call: call.label)
def test_a_call_after_autocast_is_as_one_before(call, device):
    """A recording made inside must not be repeated outside, nor one made outside inside."""
    inputs = call.draw(device)
    before = [call.run(inputs) for _ in repeats(device)][-1]
    with torch.autocast(device, BF16):
        inside = [x.dtype for x in call.run(inputs)]
        with torch.autocast(device, enabled=False):
            within = call.run(inputs)
    after = call.run(inputs)
    for one, two, three in zip(before, within, after, strict=True):
        assert torch.equal(one, two) and torch.equal(one, three)
    with torch.autocast(device, BF16):
        assert [x.dtype for x in call.run(inputs)] == inside


def step(model, x, target, low, device):
    """One step of training with autocast: the loss, and every gradient."""
    model.zero_grad()
    with torch.autocast(device, low):
        loss = torch.nn.functional.cross_entropy(model(x), target)
    loss.backward()
    return loss, [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("low", LOW.values(), ids=LOW)
def test_a_training_step_of_the_modules_is_near_torchs(low, device):
    torch.manual_seed(0)
    ours = torch.nn.Sequential(
        kernels.nn.Linear(32, 48), kernels.nn.GELU(), kernels.nn.LayerNorm(48), kernels.nn.RMSNorm(48, 1e-5),
        kernels.nn.Linear(48, 10),
    ).to(device)  # fmt: skip
    twin = torch.nn.Sequential(
        torch.nn.Linear(32, 48), torch.nn.GELU(), torch.nn.LayerNorm(48), torch.nn.RMSNorm(48, 1e-5),
        torch.nn.Linear(48, 10),
    ).to(device)  # fmt: skip
    twin.load_state_dict(ours.state_dict())
    x, target = torch.randn(6, 32).to(device), torch.tensor([1, 2, 3, 4, 5, 9]).to(device)
    loss, gradients = step(ours, x, target, low, device)
    expected, theirs = step(twin, x, target, low, device)
    assert loss.dtype == expected.dtype
    assert abs(float(loss) - float(expected)) < 0.05
    for a, b in zip(gradients, theirs, strict=True):
        assert a.dtype == b.dtype == FP32
        assert float((a - b).norm()) < 0.05 * float(b.norm()) + 1e-3
