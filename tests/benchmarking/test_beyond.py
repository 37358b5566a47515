"""Whether a public call's outputs are torch's, where nobody tuned."""

import pytest
import torch
from atlas.benchmarking.beyond import difference


def gradient(dtype):
    """Of a mean over so many that fp16 has but few steps left: 3e-7, and a twentieth of that more."""
    exact = 3.3e-7 * torch.linspace(-2, 2, 4096, dtype=torch.float64)
    return (exact * 1.05).to(dtype), exact.to(dtype)


def test_outputs_that_a_dtype_cannot_tell_apart_are_the_same():
    ours, torchs = gradient(torch.float16)
    assert not torch.equal(ours, torchs)
    assert difference([ours], [torchs], "fp16") == "", "both are fp16's subnormals, a step of 6e-8 apart"
    ours, _ = gradient(torch.float16)
    assert difference([ours], [gradient(torch.float64)[1].float()], "fp16") == "", "nor can they be nearer to fp32"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_where_a_dtype_tells_such_outputs_apart_they_differ(dtype):
    ours, torchs = (1e3 * one for one in gradient(dtype))
    assert "off torch's" in difference([ours], [torchs], "fp32")


def test_what_is_missing_or_counts_is_not_compared():
    whole, absent = torch.ones(3, dtype=torch.int64), None
    assert difference([absent, 2 * whole], [torch.ones(3), whole], "fp32") == ""
