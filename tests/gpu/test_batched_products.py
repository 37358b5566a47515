"""Batched products: variants that take few cases, at more shapes and layouts than validation draws."""

import pytest
import torch
from atlas.declaration import Capability, case, gpu_of
from atlas.declaration.choice import untuned

from kernels.batched_matmul import DECLARATION, bmm
from kernels.batched_matmul.clustered import launch_clustered
from kernels.batched_matmul.staged import STAGED_SPACE, launch_staged

from .capturing import captured

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def on_hopper(cuda):
    if Capability.WGMMA not in gpu_of(cuda).capabilities:
        pytest.skip("timed on Hopper alone")


def operands(cuda, b, m, n, k, layout, dtype):
    made = torch.Generator(cuda).manual_seed(m)
    x, y = (
        torch.randn(b, *(shape if order == "N" else shape[::-1]), device=cuda, dtype=dtype, generator=made)
        for shape, order in zip(((m, k), (k, n)), layout, strict=True)
    )
    return x if layout[0] == "N" else x.mT, y if layout[1] == "N" else y.mT


def found_by(name, a, b, dtype, layout):
    variant = DECLARATION.forward.variant(name)
    problem = case(dtype, b=a.shape[0], m=a.shape[1], n=b.shape[2], k=a.shape[2], layout=layout)
    configs = list(variant.configs(problem, gpu_of(a.device)))
    assert configs
    return [variant.launch(a, b, config=config) for config in configs]


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_several_programs_an_sm(cuda, layout):
    """Rows at 16 bytes and off them, one A for all, tails everywhere, more tiles than are under way at a time."""
    a, b = operands(cuda, 80, 200, 136, 72, layout, torch.float16)
    x, y = operands(cuda, 50, 77, 201, 333, layout, torch.bfloat16)
    for dtype, one, two in (("fp16", a, b), ("fp16", a[:1].expand(a.shape), b), ("bf16", x, y)):
        for found in found_by("direct", one, two, dtype, layout):
            torch.testing.assert_close(found, (one.float() @ two.float()).to(found.dtype), rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("values", [(32, 128, 1), (64, 128, 1), (32, 128, 4), (64, 128, 2), (32, 64, 8), (64, 64, 5)])
def test_few_tiles_by_light_programs_and_by_clusters(cuda, values, layout):
    """Tails of every side beside the next product, rows off 16 bytes, one matrix for all; the same bits at every run.

    The shortest K leave a program little shared memory of its own beside what is sent to it.
    """
    config = dict(zip(("BLOCK_Q", "BLOCK_K", "CLUSTER"), values, strict=True))
    for b, m, n, k in ((8, 96, 256, 96), (2, 64, 128, 512), (3, 69, 104, 1033), (2, 577, 80, 520), (5, 33, 201, 2056)):
        for dtype in (torch.bfloat16, torch.float16):
            x, y = operands(cuda, b, m, n, k, layout, dtype)
            for one, two in ((x, y), (x[:1].expand(x.shape), y), (x, y[1:2].expand(y.shape)), (x[1:2], y[1:2])):
                found = [launch_clustered(one, two, config=config) for _ in range(4)]
                exact = (one.float() @ two.float()).to(dtype)
                torch.testing.assert_close(found[0], exact, rtol=1e-2, atol=k**0.5 / 400)
                assert all(torch.equal(c, found[0]) for c in found)


@pytest.mark.parametrize("sizes", [(8, 96, 256, 96), (6, 128, 128, 4096), (12, 64, 64, 2048), (2, 96, 128, 577)])
def test_calls_of_few_tiles_in_a_graph(cuda, sizes):
    """What the choice takes, through the public function, captured and run again over other values."""
    b, m, n, k = sizes
    x, y = operands(cuda, b, m, n, k, "TN", torch.bfloat16)
    problem = case("bf16", b=b, m=m, n=n, k=k, layout="TN")
    assert untuned(DECLARATION.forward, problem, gpu_of(cuda))[0].name == "clustered"
    for _ in range(3):
        bmm(x, y)
    graph, found = captured(lambda: bmm(x, y))
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(found, (x.float() @ y.float()).bfloat16(), rtol=1e-2, atol=k**0.5 / 400)
        torch.testing.assert_close(found, bmm(x, y), rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["NN", "NT", "TT"])
def test_terms_are_as_exact_as_fma_and_keep_fp32s_range(cuda, layout):
    for b, m, n, k in ((84, 200, 48, 80), (3, 77, 96, 333)):
        x, y = operands(cuda, b, m, n, k, layout, torch.float32)
        exact = x.double() @ y.double()
        for found in found_by("terms", x, y, "fp32", layout):
            assert (found - exact).abs().max() <= 4e-7 * exact.abs().max()
    x[0, 0, 0], x[0, 1, 1], x[0, 2, 2], y[1, :, 5] = torch.inf, torch.nan, torch.finfo(torch.float32).max, 0
    y[:, 2] *= 1e-5
    for found in found_by("terms", x, y, "fp32", layout):
        torch.testing.assert_close(found, (x.double() @ y.double()).float(), rtol=1e-4, atol=1e-3, equal_nan=True)


STAGED = {
    "fp32": [(64, 128, 0, 16), (64, 64, 0, 32), (64, 64, 16, 16), (64, 64, 32, 16)],
    "tf32": [(64, 64, 0, 32)],
}
ERRORS = {"fp32": 1e-6, "tf32": 1e-4}
"""Of the largest element; an operand's own rounding to tf32 is 5e-4."""


def found_through_registers(dtype, a, b):
    """By every config whose tile is no larger than C."""
    for values in STAGED[dtype]:
        for turned in (0, 1):
            rows, columns = (b.shape[2], a.shape[1]) if turned else (a.shape[1], b.shape[2])
            if rows >= 64 and columns >= values[1]:
                config = dict(zip(STAGED_SPACE, (*values, turned), strict=True))
                yield launch_staged(a, b, dtype == "tf32", config=config)


@pytest.mark.parametrize("dtype", STAGED)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_products_through_registers(cuda, layout, dtype):
    """Tiles that overlap at the ends, rows at 16 elements and off them, sums of less than a block, one matrix for all.

    Tiles of the transpose, tails of columns, every second row; no bit differs at another run.
    """
    error = ERRORS[dtype]
    for b, m, n, k in ((20, 131, 333, 77), (9, 64, 64, 7), (5, 128, 80, 256), (7, 77, 144, 197), (3, 256, 97, 1024)):
        x, y = operands(cuda, b, m, n, k, layout, torch.float32)
        every_second = x.new_empty(b, 2 * m, k)[:, ::2].copy_(x)
        for one, two in ((x, y), (x[:1].expand(x.shape), y), (x, y[1:2].expand(y.shape)), (every_second, y)):
            exact = one.double() @ two.double()
            found = list(found_through_registers(dtype, one, two))
            assert found
            for c, again in zip(found, found_through_registers(dtype, one, two), strict=True):
                assert (c - exact).abs().max() <= error * exact.abs().max()
                assert torch.equal(c, again)


@pytest.mark.parametrize("dtype", STAGED)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_products_through_registers_keep_infinities_nan_and_the_largest_numbers(cuda, layout, dtype):
    """3.3e38 times 1.0315 is beyond what fp32 holds, though the product of both numbers' first terms is not."""
    x, y = (t.abs() + 0.1 for t in operands(cuda, 3, 140, 150, 197, layout, torch.float32))
    x[0, 3, 5], x[0, 100, 196], x[1, 70, 3], x[1, 139, 0] = torch.inf, -torch.inf, torch.nan, torch.inf
    x[2, 5, 9], x[2, 80, 4], x[2, 90, 7] = 3.3e38, -3.3e38, torch.finfo(torch.float32).max
    y[0, 5, 2], y[0, 5, 140], y[2, 9], y[2, 4], y[2, 7], y[1, 7, 149] = 0, -1, 1.0315, -1.0315, 0.99, -torch.inf
    exact = (x.double() @ y.double()).float()  # 0 times infinity is NaN, and sums beyond the largest are infinite
    assert exact.isnan().any() and exact.isposinf().any() and exact.isneginf().any()
    for found in found_through_registers(dtype, x, y):
        torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "layout", "sizes"),
    [
        ("fp32", "TN", (64, 768, 333, 77)),
        ("fp32", "NN", (64, 77, 333, 768)),
        ("fp32", "NT", (24, 577, 577, 77)),
        ("tf32", "TN", (64, 197, 77, 333)),
    ],
)
def test_calls_through_registers_in_a_graph(cuda, dtype, layout, sizes):
    b, m, n, k = sizes
    x, y = operands(cuda, b, m, n, k, layout, torch.float32)
    assert (
        untuned(DECLARATION.forward, case(dtype, b=b, m=m, n=n, k=k, layout=layout), gpu_of(cuda))[0].name == "staged"
    )
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        for _ in range(3):
            bmm(x, y)
        graph, found = captured(lambda: bmm(x, y))
        for _ in range(3):
            x.normal_()
            graph.replay()
            exact = x.double() @ y.double()
            assert (found - exact).abs().max() <= ERRORS[dtype] * exact.abs().max()
            assert torch.equal(found, bmm(x, y))
    finally:
        torch.set_float32_matmul_precision(before)
