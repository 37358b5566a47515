"""Every layout of an incoming gradient keeps shape and values, that of a loss (no dimensions) included."""

import pytest
import torch
from atlas.validation import public


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("name", public.LAYOUTS)
def test_a_layout_keeps_shape_and_values(name, shape):
    tensor = torch.randn(shape)
    torch.testing.assert_close(public.LAYOUTS[name](tensor), tensor, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(), (5,), (3, 4)], ids=str)
def test_an_expanded_gradient_has_the_shape_and_stride_0(shape):
    expanded = public._expanded(torch.randn(shape))
    assert expanded.shape == torch.Size(shape)
    assert not shape or expanded.stride(0) == 0
