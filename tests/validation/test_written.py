"""What a launch leaves unwritten, by two runs into memory that was filled otherwise."""

import pytest
import torch
from atlas.declaration import Declaration, Pass, Variant, case, eager
from atlas.validation import variants
from atlas.validation.problems import Problem


def written(values, leaves=(), twice=True):
    """The finding on what is written, of a kernel that stores these values, but none at the places it leaves."""

    def launch(x, *, config):
        out = torch.empty_like(values)
        kept = torch.tensor([i not in leaves for i in range(len(values))])
        out[kept] = values[kept]
        return out

    variant = Variant("plain", launch, {"BLOCK": (1,)}, lambda problem, gpu: {"BLOCK": 1})
    given = Pass(
        inputs=lambda c, device, generator: {"x": torch.zeros(6)},
        reference=lambda x: values,
        outputs=("out",),
        variants=(variant,),
        peers={"torch": eager(lambda x: values)},
        bytes=lambda c: {"out": 24},
        flops=lambda c: {},
    )
    declaration = Declaration(
        name="given", family="test", summary="", call=None, dtypes=("fp32",), cases=lambda gpu: [], edge_cases=(),
        forward=given,
    )  # fmt: skip
    problem = Problem(declaration, "forward", case("fp32", n=6), torch.device("cpu"), 0)
    findings = {one.check: one for one in variants.check_variant(problem, variant, {"BLOCK": 1}, twice)}
    return findings["written_once_and_inside"]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float32, torch.bool])
def test_elements_that_no_run_writes_are_named(dtype):
    found = written(torch.ones(6, dtype=dtype), leaves=(4, 5))
    assert found.status == "fail" and "out is not written in 2 of 6 elements: the tail" in found.reason


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_no_integer_is_taken_for_memory_that_was_not_written(dtype):
    # Whatever number one run's memory was filled with, the other's was filled with another.
    assert written(torch.arange(256).to(dtype)).status == "pass"


def test_neither_truth_value_is_taken_for_memory_that_was_not_written():
    assert written(torch.tensor([True, False])).status == "pass"


def test_of_a_single_run_floating_outputs_alone_show_what_was_not_written():
    assert written(torch.ones(6), leaves=(0,), twice=False).status == "fail"
    assert written(torch.arange(256), twice=False).status == "pass", "any of them may be what was computed"
