"""Export: programs with calls whose number of rows is any run for other rows than they were traced with."""

import pytest
import torch
from torch.export import Dim

import kernels

ROWS, WIDTH = 4, 8


def matrix(rows, seed=0):
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))


W = matrix(16, seed=1)

CALLS = {
    "linear": lambda x: kernels.linear(x, W, activation="gelu"),
    "matmul": lambda x: kernels.matmul(x, W.t()),
    "bmm": lambda x: kernels.bmm(x[None], W.t()[None]),
    "bmm, batches": lambda x: kernels.bmm(x[:, None], W.t().expand(x.shape[0], WIDTH, 16)),
    "int_mm": lambda x: kernels.int_mm(x.round().to(torch.int8), W.t().round().to(torch.int8)),
    "grouped_mm": lambda x: kernels.grouped_mm(x, W.t()[None], offs=torch.full((1,), x.shape[0], dtype=torch.int32)),
    "layer_norm_linear": lambda x: kernels.layer_norm_linear(x, W),
    "layer_norm": lambda x: kernels.layer_norm(x, [WIDTH]),
    "rms_norm": lambda x: kernels.rms_norm(x, [WIDTH]),
    "softmax": lambda x: kernels.softmax(x, -1),
    "sum": lambda x: kernels.sum(x, -1),
    "gelu": lambda x: kernels.gelu(x),
    "cross_entropy": lambda x: kernels.cross_entropy(x, x.argmax(1)),
    "linear_cross_entropy": lambda x: kernels.linear_cross_entropy(x, W, x.argmax(1)),
    "attention": lambda x: kernels.scaled_dot_product_attention(*[x[None, None]] * 3, is_causal=True),
}


class Program(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


@pytest.mark.parametrize("name", CALLS)
def test_a_program_of_any_number_of_rows_is_exported(name):
    """A check of a size beside a known one was a bound on it, which an export refuses that has no such bound."""
    rows = {"x": {0: Dim("rows", min=2)}}
    exported = torch.export.export(Program(CALLS[name]), (matrix(ROWS),), dynamic_shapes=rows).module()
    for more in (ROWS, 33):
        torch.testing.assert_close(exported(matrix(more)), CALLS[name](matrix(more)))
