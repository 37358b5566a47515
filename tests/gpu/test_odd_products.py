"""Few rows times matrices of odd rows: more shapes and strides than validation draws, graphs."""

import pytest
import torch
from atlas.declaration import Capability, gpu_of

from kernels.matmul.shifted import SHIFTED_SPACE, launch_shifted
from kernels.matmul.staggered import STAGGERED_SPACE, launch_staggered

from .capturing import captured

pytestmark = pytest.mark.gpu

CONFIGS = [(128, 1), (128, 8), (256, 1), (256, 3)]
"""BLOCK_N, SPLITS"""
SHAPES = {
    torch.bfloat16: [(5, 50257, 1031), (15, 2049, 4098), (2, 131, 9), (9, 4097, 300)],
    torch.float16: [(7, 1030, 2051), (12, 516, 777)],
}
"""m, n, k, none of which 16 divides: so they share what is compiled."""


@pytest.fixture(autouse=True)
def on_hopper(cuda):
    if Capability.WGMMA not in gpu_of(cuda).capabilities:
        pytest.skip("timed on Hopper alone")


ALONG_K = {
    torch.bfloat16: [(5, 4099, 2047), (2, 131, 9), (9, 301, 8205), (40, 1031, 777)],
    torch.float16: [(12, 515, 1030), (63, 2049, 513)],
}
"""The same where odd rows lie along K."""


def drawn(cuda, rows, columns, dtype):
    made = torch.Generator(cuda).manual_seed(rows)
    return torch.randn(rows, columns, device=cuda, dtype=dtype, generator=made)


def near(found, a, b):
    expected = a.float() @ b.float()
    rounding = 2.0**-8 if found.dtype == torch.bfloat16 else 2.0**-10
    torch.testing.assert_close(found.float(), expected, rtol=rounding, atol=1e-3 * expected.abs().max().item())


@pytest.mark.parametrize("values", CONFIGS)
def test_products(cuda, values):
    """Rows at every multiple of 2 bytes; A by rows, and by columns beside a C that is turned; the same at every run."""
    config = dict(zip(SHIFTED_SPACE, (*values, 4), strict=True))
    for dtype, (m, n, k) in ((dtype, shape) for dtype, shapes in SHAPES.items() for shape in shapes):
        a, b = drawn(cuda, m, k, dtype), drawn(cuda, k, n, dtype)
        found = launch_shifted(a, b, config=config)
        near(found, a, b)
        assert torch.equal(launch_shifted(a, b, config=config), found)
        by_columns = a.t().contiguous().t()
        near(launch_shifted(b.t(), by_columns.t(), config=config).t(), a, b)


@pytest.mark.parametrize("first", [0, 8, 1])
def test_what_lies_beside_a_matrix_is_in_no_sum(cuda, first):
    wide = torch.full((640, 1029), torch.nan, device=cuda, dtype=torch.bfloat16)
    b = wide[3 * 8 : -8, first : first + 1009]
    b.copy_(drawn(cuda, *b.shape, torch.bfloat16))
    a = drawn(cuda, 6, b.shape[0], torch.bfloat16)
    near(launch_shifted(a, b, config={"BLOCK_N": 256, "SPLITS": 2, "num_warps": 4}), a, b)


@pytest.mark.parametrize("splits", [1, 3])
def test_a_graph_multiplies_what_then_lies_there(cuda, splits):
    a, b = drawn(cuda, 5, 2050, torch.bfloat16), drawn(cuda, 2050, 20001, torch.bfloat16)
    config = {"BLOCK_N": 256, "SPLITS": splits, "num_warps": 4}
    launch_shifted(a, b, config=config)
    torch.cuda.synchronize()
    graph, found = captured(lambda: launch_shifted(a, b, config=config))
    b.mul_(-2)
    graph.replay()
    near(found, a, b)


@pytest.mark.parametrize(("columns", "splits", "copies"), [(32, 6, 0), (32, 1, 1), (64, 1, 0), (64, 3, 1)])
def test_products_along_k(cuda, columns, splits, copies):
    """A by rows, and by columns beside a C that is turned; NaN beside rows of B; the same at every run."""
    config = dict(zip(STAGGERED_SPACE, (columns, 128, splits, copies, 4), strict=True))
    for dtype, (m, n, k) in ((dtype, shape) for dtype, shapes in ALONG_K.items() for shape in shapes):
        if m > 16 and not copies:
            continue
        rows = torch.full((n, k + 8 if k % 2 else k + 4), torch.nan, device=cuda, dtype=dtype)[:, :k]
        a, b = drawn(cuda, m, k, dtype), rows.copy_(drawn(cuda, n, k, dtype)).t()
        found = launch_staggered(a, b, config=config)
        near(found, a, b)
        assert torch.equal(launch_staggered(a, b, config=config), found)
        by_columns = a.t().contiguous().t()
        near(launch_staggered(b.t(), by_columns.t(), config=config).t(), a, b)


@pytest.mark.parametrize(("splits", "copies"), [(1, 0), (1, 1), (3, 1)])
def test_a_graph_shifts_and_multiplies_what_then_lies_there(cuda, splits, copies):
    a, b = drawn(cuda, 5, 2049, torch.bfloat16), drawn(cuda, 8001, 2049, torch.bfloat16).t()
    config = dict(zip(STAGGERED_SPACE, (32, 128, splits, copies, 4), strict=True))
    launch_staggered(a, b, config=config)
    torch.cuda.synchronize()
    graph, found = captured(lambda: launch_staggered(a, b, config=config))
    a.mul_(-2)
    graph.replay()
    near(found, a, b)
