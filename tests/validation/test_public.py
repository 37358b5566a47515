"""The public function's checks where the device has too little memory, or torch nothing to say."""

import dataclasses

import pytest
import torch
from atlas.declaration import Peer
from atlas.validation import public, variants
from atlas.validation.problems import NoReference, Problem

from .row_kernel import DECLARATION


def problem(call=DECLARATION.call, **changes):
    """The row kernel's smallest forward problem, with some attributes of its pass changed."""
    forward = dataclasses.replace(DECLARATION.forward, **changes)
    declaration = dataclasses.replace(DECLARATION, forward=forward, call=call)
    return Problem(declaration, "forward", DECLARATION.edge_cases[0], torch.device("cpu"), seed=0)


def test_gradients_without_memory_are_left_out_and_not_the_kernels_fault():
    def exhausted(function, inputs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nand more words")

    with pytest.raises(NoReference, match=r"^gradients: OutOfMemoryError: CUDA out of memory. Tried to .* 2.00 GiB.$"):
        list(public.check_gradients(problem(call=exhausted), every_layout=False))


def test_torch_that_returns_nothing_is_no_yardstick():
    assert problem(peers={"torch": Peer(lambda **inputs: lambda: None)}).yardstick is None


def test_an_offset_is_given_to_the_inputs_that_the_pass_names():
    none, every = problem(offset_inputs=()), problem()
    assert torch.equal(variants.with_offset(none, ["x"]).inputs["x"], none.inputs["x"])
    assert not torch.equal(variants.with_offset(every, ["x"]).inputs["x"], every.inputs["x"])


def test_of_torch_that_returns_nothing_gradients_are_no_yardstick_either():
    nothing = problem(peers={"torch": Peer(lambda **inputs: lambda: None)})
    (finding,) = public.check_gradients(nothing, every_layout=False)
    assert finding.status == "pass", finding.reason
