"""What attention's gradients are judged by: the size of each element's own terms."""

import pytest
import torch
from atlas.declaration import case
from atlas.validation.judging import judge

from kernels.attention import DECLARATION, cases


def _rounded_as_in_a_kernel(inputs, keys=None):
    """Gradients in fp32 with P and dS rounded to the inputs' dtype; of the first ``keys`` keys alone, if given."""
    q, k, v, out, dout = (inputs[name].float() for name in ("q", "k", "v", "out", "dout"))
    p = torch.exp(cases.scores_of(q, k, inputs["causal"], inputs["scale"]) - inputs["lse"][..., None])
    ds = p * (dout @ v.transpose(-1, -2) - (dout * out).sum(-1, keepdim=True))
    p, ds = (x.to(inputs["q"].dtype).float() for x in (p, ds))
    dq = inputs["scale"] * (ds[..., :keys] @ k[..., :keys, :])
    dk = inputs["scale"] * (ds.transpose(-1, -2) @ q)
    return [x.to(inputs["q"].dtype) for x in (dq, dk, p.transpose(-1, -2) @ dout)]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_the_first_keys_of_a_causal_mask_are_judged_by_the_size_of_their_own_terms(dtype):
    # The first key has half of the second query's weight, the last a 150th of few: one scale for both calls the first
    # wrong, or lets the last be anything.
    problem = case(dtype, b=1, h=1, g=1, l=150, s=200, d=136, causal=True)
    names, reduction = ("dq", "dk", "dv"), DECLARATION.backward.reduction(problem)
    failed = 0
    for seed in range(5):
        inputs = cases.backward_inputs(problem, "cpu", torch.Generator().manual_seed(seed))
        exact = {name: x.double() if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
        expected, spreads = cases.backward_reference(**exact), cases.backward_spread(**exact)
        got = _rounded_as_in_a_kernel(inputs)
        assert not judge(got, expected, None, names, dtype, reduction, spreads=spreads).reason
        failed += bool(judge(got, expected, None, names, dtype, reduction).reason)
        lost = _rounded_as_in_a_kernel(inputs, keys=140)
        assert judge(lost, expected, None, names, dtype, reduction, spreads=spreads).reason
    assert failed or dtype == "fp32"
