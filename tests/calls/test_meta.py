"""Tensors without values: shape, dtype and device as torch gives them, and nothing is launched."""

import contextlib
import copy

import pytest
import torch
from atlas.workers.process import Died, Process, TimedOut

from .table import CALLS, DIFFERENTIABLE, MODULES, on, tensors, weighted

_CALL_SECONDS = 120.0
_MOST_LOST = 3
"""Processes that may lose the GPU; each costs some ten seconds, and what is left is then not tried."""


def facts(results):
    """Shape and dtype of each tensor; all lie on the device "meta"."""
    assert {x.device.type for x in results} == {"meta"}, [str(x.device) for x in results]
    return [(tuple(x.shape), x.dtype) for x in results]


def forward(label):
    """What is wrong with a call on meta tensors, or ``""``."""
    call = next(call for call in CALLS if call.label == label)
    inputs = call.draw("meta")
    found = facts(call.run(inputs))
    expected = facts(call.run_torch(inputs)) if call.torch else None
    return "" if expected in (None, found) else f"{found}, where torch has {expected}"


def backward(label):
    """The same of gradients."""
    call = next(call for call in CALLS if call.label == label)
    inputs = call.leaves(call.draw("meta"))
    weighted(call.run(inputs)).backward()
    wanted = [inputs[name] for name in call.wanting]
    found = facts([x.grad for x in wanted])
    expected = [(tuple(x.shape), x.dtype) for x in wanted]
    return "" if found == expected else f"{found}, where the inputs are {expected}"


def module(name):
    """The same of a module: of results for meta inputs, beside those for real ones."""
    found = next(module for module in MODULES if module.name == name)
    made, given = found.make().to("meta"), on(found.inputs(), "meta")
    results = tensors(made(*given))
    facts(results)
    leading = given[0].shape[:1] if results[0].dim() else ()
    return "" if results[0].shape[:1] == leading else f"{tuple(results[0].shape)} for {tuple(given[0].shape)}"


def serve(connection):
    """In a process that may lose its GPU: answer what is asked, and whether a real call still works after it."""
    import kernels

    with contextlib.suppress(EOFError):
        while True:
            check, name = connection.recv()
            try:
                wrong = check(name)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"[:300]
            try:
                one = torch.ones(64, device="cuda")
                lost = float(kernels.vector_add(one, one).sum()) != 128.0
                after = "a real call is wrong afterwards" if lost else ""
            except Exception as error:
                after, lost = f"the process has lost its GPU: {error}"[:300], True
            connection.send((wrong, after))
            if lost:
                return


@pytest.fixture(scope="module")
def on_meta():
    """``on_meta(device, check, name)``: in this process where the interpreter runs, else in one that may be lost."""
    children = []

    def ask(device, check, name):
        if device == "cpu":
            return check(name), ""
        if not children or not children[-1].running:
            if len(children) >= _MOST_LOST:
                pytest.fail(f"not tried: {_MOST_LOST} processes have lost their GPU by other calls", pytrace=False)
            children.append(Process(serve, name="meta-calls"))
            children[-1].start()
        children[-1].send((check, name))
        try:
            wrong, after = children[-1].receive(_CALL_SECONDS)
        except (Died, TimedOut) as error:
            return f"the process ended: {error}", "it did"
        if after:
            children[-1].kill()
        return wrong, after

    yield ask
    for child in children:
        child.kill()


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.label)
def test_a_call_on_meta_tensors_has_torchs_shapes_and_launches_nothing(call, device, on_meta):
    assert on_meta(device, forward, call.label) == ("", "")


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=lambda call: call.label)
def test_gradients_of_meta_tensors_have_the_inputs_shapes(call, device, on_meta):
    assert on_meta(device, backward, call.label) == ("", "")


@pytest.mark.parametrize("made", MODULES, ids=lambda module: module.name)
def test_a_module_on_meta_runs_on_meta_tensors(made, device, on_meta):
    assert on_meta(device, module, made.name) == ("", "")


@pytest.mark.parametrize("made", MODULES, ids=lambda module: module.name)
def test_a_module_made_on_meta_gets_its_values_later(made, device):
    real = made.make()
    empty = copy.deepcopy(real).to("meta")
    empty.to_empty(device=device).load_state_dict(real.state_dict())
    assert all(x.device.type == device for x in (*empty.parameters(), *empty.buffers()))
