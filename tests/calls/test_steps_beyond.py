"""A step that is timed beside torch's has the same gradients: of the results that both return, and of no others."""

import pytest
import torch
from atlas import catalog
from atlas.benchmarking import beyond
from atlas.declaration import case
from atlas.host import gpus
from atlas.reading.config import load_gpus

CALLS = {
    "layer_norm": {"m": 3, "n": 40, "residual": True},  # torch's row means and the residual sum stand behind the result
    "attention_masked": {"b": 1, "h": 2, "g": 1, "l": 20, "s": 20, "d": 16, "mask": "none", "left": 5, "right": 5},
    "rope": {"batch": 1, "seq": 4, "heads": 2, "kv_heads": 1, "head_dim": 16, "interleaved": False,
             "heads_first": False},  # two results, both with a gradient
}  # fmt: skip
"""Of each kernel whose function or reference returns more than one tensor a small call."""


@pytest.mark.parametrize("kernel", CALLS)
def test_gradients_of_a_step_are_those_of_torch(kernel):
    declaration, gpu = catalog.load(kernel, interpret=True), gpus.gpu("cpu", load_gpus()["cpu"])
    drawn = beyond.entries(declaration, gpu, case("fp32", **CALLS[kernel]), "step", torch.device("cpu"))
    found = {entry.name: entry.prepare()() for entry in drawn if entry.name in (beyond.OURS, "torch")}
    for ours, expected in zip(found[beyond.OURS], found["torch"], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
