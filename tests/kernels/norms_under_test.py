"""What tests of both norms share: tensors, tolerances, their variants, and a team whose programs run one by one."""

import sys

import pytest
import torch
import triton
import triton.language as tl
from atlas.declaration.hardware import INTERPRETER
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", "match" in block)}


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(found, expected, dtype=torch.float32, bf16=2e-2):
    """By twice the unit roundoff of the dtype: the interpreter truncates where GPUs round to bf16."""
    tolerance = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: bf16}[dtype]
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


def each_variant(declaration):
    """A test's ``direction`` and ``variant``: of both passes all that the interpreter runs."""
    return pytest.mark.parametrize(
        ("direction", "variant"),
        [
            pytest.param(direction, variant, id=f"{direction}-{variant.name}")
            for direction, work in declaration.passes.items()
            for variant in work.variants
            if variant.name != "team"  # whose programs wait for one another
        ],
    )


@triton.jit
def _look_up(slot_ptrs):
    return tl.load(slot_ptrs)


@triton.jit
def _take(slot_ptrs, seen):
    return (seen >> 32).to(tl.int32).to(tl.float32, bitcast=True), seen.to(tl.int32).to(tl.float32, bitcast=True)


def by_team_and_by_columns(monkeypatch, module, declaration, problem, inputs, team):
    """The gradients by variant ``team`` of ``module`` and by ``columns``.

    On the interpreter programs run one after the other.  So a launch is made twice, with slots that are kept: the first
    time some are empty yet when they are looked up.
    """
    kernels, slots = sys.modules[module], torch.zeros((problem["m"], team), dtype=torch.int64)
    for name, stand_in in (("look", _look_up), ("hear", _take), ("unset_slots", lambda *_: slots)):
        monkeypatch.setattr(kernels, name, stand_in)
    config = {"TEAM": team, "num_warps": 1, "num_stages": 3}
    for _ in range(2):
        found = declaration.backward.variant("team").launch(**inputs, config=config)
    columns = declaration.backward.variant("columns")
    return found, columns.launch(**inputs, config=columns.default(problem, INTERPRETER))
