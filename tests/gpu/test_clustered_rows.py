"""Softmax of few long rows by clusters, which nothing interprets: values in every config, special values, graphs."""

import itertools

import pytest
import torch
from atlas.declaration import Capability, gpu_of

from .capturing import captured

pytestmark = pytest.mark.gpu

CONFIGS = list(itertools.product((4, 8), (8, 16)))
"""CLUSTER, num_warps."""
SHAPES = [(1, 32_768), (2, 40_008), (16, 65_536), (40, 33_000), (3, 8), (5, 2056)]
"""Whole tiles; a shorter last part; many clusters, and more than run at once; programs without columns; short parts."""


@pytest.fixture(autouse=True)
def on_hopper(cuda):
    if Capability.WGMMA not in gpu_of(cuda).capabilities:
        pytest.skip("written for Hopper")


def softmax(x, log, values):
    from kernels.softmax.clustered import launch_clustered

    return launch_clustered(x, log=log, config=dict(zip(("CLUSTER", "num_warps"), values, strict=True)))


def near(found, x, log):
    expected = (torch.log_softmax if log else torch.softmax)(x.double(), -1)
    roundoff = {torch.bfloat16: 2**-8, torch.float16: 2**-10, torch.float32: 1e-5}[x.dtype]
    torch.testing.assert_close(found.double(), expected, rtol=roundoff, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("values", CONFIGS)
@pytest.mark.parametrize("log", [False, True], ids=["softmax", "logarithm"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rows_by_clusters(cuda, dtype, log, values):
    torch.manual_seed(0)
    for m, n in SHAPES:
        x = 4 * torch.randn(m, n, device=cuda, dtype=dtype)
        found = [softmax(x, log, values) for _ in range(5)]
        near(found[0], x, log)
        assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "logarithm"])
def test_special_values_anywhere_in_a_row(cuda, log):
    x = torch.randn(8, 32_768, device=cuda)
    x[1, 20_000], x[2, 5], x[3] = torch.nan, torch.inf, -torch.inf
    x[4, 4096:] = -torch.inf  # of seven programs all columns
    x[5, :-1] = -torch.inf
    x[6], x[7, 4096:] = torch.finfo(torch.float32).min, -1e4
    near(softmax(x, log, (8, 16)), x, log)


def test_what_a_graph_repeats_follows_its_input(cuda):
    x = torch.randn(4, 32_768, device=cuda, dtype=torch.bfloat16)
    softmax(x, False, (8, 16))
    graph, y = captured(lambda: softmax(x, False, (8, 16)))
    for _ in range(3):
        x.normal_()
        graph.replay()
        near(y, x, False)
