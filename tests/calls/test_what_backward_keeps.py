"""What backward needs of a call is kept: a change in place is noticed or does no harm, a second backward is right."""

import pytest
import torch

from .table import DIFFERENTIABLE, assert_near, weighted

CHANGED = [pytest.param(call, name, id=f"{call.label}-{name}") for call in DIFFERENTIABLE for name in call.wanting]


def copies_of(call, device):
    """Leaves, and copies of them for the call, which may be changed in place."""
    leaves = call.leaves(call.draw(device))
    return leaves, leaves | {name: leaves[name].clone() for name in call.wanting}


@pytest.mark.parametrize(("call", "name"), CHANGED)
def test_an_input_changed_before_backward_is_noticed_or_does_no_harm(call, name, device):
    expected, given = copies_of(call, device)
    weighted(call.run(given)).backward()
    leaves, given = copies_of(call, device)
    loss = weighted(call.run(given))
    with torch.no_grad():
        given[name].mul_(2.0)
    try:
        loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return
    for wanted in call.wanting:
        assert_near(leaves[wanted].grad, expected[wanted].grad, call, call.dtype, f"gradient of {wanted}")


ONE_BACKWARD = ("linear_cross_entropy",)
"""Which give their gradients away."""


@pytest.mark.parametrize("call", [c for c in DIFFERENTIABLE if c.function not in ONE_BACKWARD], ids=lambda c: c.label)
def test_a_second_backward_through_a_kept_graph_adds_the_same(call, device):
    leaves, given = copies_of(call, device)
    loss = weighted(call.run(given))
    loss.backward(retain_graph=True)
    once = {name: leaves[name].grad.clone() for name in call.wanting}
    loss.backward()
    for name in call.wanting:
        assert_near(leaves[name].grad, 2.0 * once[name], call, call.dtype, f"gradient of {name}")
