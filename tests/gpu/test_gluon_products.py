"""Products in Gluon, which nothing interprets: values in every layout and tile, with tails and last rounds in parts."""

import itertools

import pytest
import torch
from atlas.declaration import Capability, gpu_of

pytestmark = pytest.mark.gpu

TILES = ((2, 64, 256, 4, 2), (3, 64, 128, 5, 1), (2, 64, 128, 6, 2), (2, 128, 128, 4, 1))
"""GROUPS, ROWS, BLOCK_N, STAGES, BUFFERS."""
SHAPES = {
    (1, 8, 8): "one row, less than a block of anything",
    (72, 136, 200): "less than a tile, k off its blocks",
    (200, 264, 4104): "groups whose rows lie outside; many turns of the ring",
    (2184, 2056, 72): "a last round of few tiles with tails, in parts; sums shorter than the ring",
    (4232, 4104, 328): "several rounds",
    (1003, 4097, 331): "rows off 16 bytes of all of them: padded copies, elements written one by one",
}


@pytest.fixture(autouse=True)
def on_hopper(cuda):
    if Capability.WGMMA not in gpu_of(cuda).capabilities:
        pytest.skip("written for Hopper")


def matrix(cuda, rows, columns, order, dtype=torch.bfloat16):
    shape = (rows, columns) if order == "N" else (columns, rows)
    made = torch.randn(shape, device=cuda, dtype=dtype, generator=torch.Generator(cuda).manual_seed(rows))
    return made if order == "N" else made.t()


def near(found, expected):
    """Within what rounding the result to 16 bits makes of it, and the order of fp32 sums."""
    tolerance = 2.0**-8 if found.dtype == torch.bfloat16 else 2.0**-10
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=1e-3 * expected.abs().max().item())


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "x".join(map(str, tile[:3])))
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_products(cuda, layout, tile):
    from kernels.common.padded import padded
    from kernels.matmul.hopper import product

    config = dict(zip(("GROUPS", "ROWS", "BLOCK_N", "STAGES", "BUFFERS"), tile, strict=True)) | {"BLOCK_K": 64}
    for (m, n, k), dtype in itertools.product(SHAPES, (torch.bfloat16, torch.float16)):
        a, b = matrix(cuda, m, k, layout[0], dtype), matrix(cuda, k, n, layout[1], dtype)
        c = torch.full((m, n), torch.nan, device=cuda, dtype=dtype)
        product(padded(a), padded(b), c, config=config | {"GROUP_M": 8}, programs=gpu_of(cuda).sms)
        near(c, a.float() @ b.float())


@pytest.mark.parametrize("tile", [(32, 6), (64, 5)], ids=["128x160", "128x192"])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_products_in_one_round(cuda, layout, tile):
    from kernels.common.padded import padded
    from kernels.matmul.hopper_columns import product_by_columns

    config = dict(zip(("BESIDE", "STAGES"), tile, strict=True)) | {"BLOCK_K": 64, "GROUP_M": 8}
    for (m, n, k), dtype in itertools.product(SHAPES, (torch.bfloat16, torch.float16)):
        a, b = matrix(cuda, m, k, layout[0], dtype), matrix(cuda, k, n, layout[1], dtype)
        c = torch.full((m, n), torch.nan, device=cuda, dtype=dtype)
        product_by_columns(padded(a), padded(b), c, config=config)
        near(c, a.float() @ b.float())


CLUSTERS = [(16, 256, 8), (16, 256, 1), (32, 128, 5), (64, 128, 1), (64, 128, 3), (64, 64, 8), (128, 64, 7)]
"""BLOCK_Q, BLOCK_K, CLUSTER"""


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("values", CLUSTERS)
def test_products_of_few_rows_in_clusters(cuda, values, layout):
    """Tails of every side, long rows and long columns, rows off 16 bytes; the same bits at every run.

    The shortest K leave a program little shared memory of its own beside what is sent to it.
    """
    from kernels.matmul.clustered import launch_clustered

    config = dict(zip(("BLOCK_Q", "BLOCK_K", "CLUSTER"), values, strict=True))
    shapes = ((16, 256, 16384), (64, 2048, 6144), (200, 8, 8200), (24, 136, 4104), (37, 65, 5003))
    short = (((112, 256, 1024), torch.bfloat16), ((32, 256, 512), torch.float16))
    for (m, n, k), dtype in (*itertools.product(shapes, (torch.bfloat16, torch.float16)), *short):
        a, b = matrix(cuda, m, k, layout[0], dtype), matrix(cuda, k, n, layout[1], dtype)
        found = [launch_clustered(a, b, config=config) for _ in range(5)]
        near(found[0], a.float() @ b.float())
        assert all(torch.equal(c, found[0]) for c in found)


@pytest.mark.parametrize("values", CLUSTERS)
def test_linear_layers_in_clusters(cuda, values):
    from kernels.matmul_epilogue.clustered import launch_clustered

    config = dict(zip(("BLOCK_Q", "BLOCK_K", "CLUSTER"), values, strict=True))
    for m, n, k in ((16, 264, 4096), (333, 40, 2056), (24, 1001, 2501)):
        x, weight, bias = matrix(cuda, m, k, "N"), matrix(cuda, n, k, "N"), matrix(cuda, 1, n, "N")[0]
        added = matrix(cuda, m, n, "N")
        y, z = launch_clustered(x, weight, bias, added, "relu", 0.5, keep=True, config=config)
        expected = 0.5 * (x.float() @ weight.float().t()) + bias.float()
        near(z, expected)
        near(y, expected.relu() + added.float())
        near(launch_clustered(x, weight, config=config), x.float() @ weight.float().t())


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("int8", (16, 64, 6)),
        ("int8", (64, 128, 2)),
        ("int8", (64, 64, 1)),
        ("e4m3 e4m3", (64, 64, 3)),
        ("e4m3 e4m3", (128, 64, 7)),
        ("e4m3 e4m3", (64, 16, 1)),
        ("e5m2 e4m3", (32, 64, 8)),
        ("e5m2 e4m3", (64, 128, 4)),
        ("e4m3 e5m2", (64, 32, 5)),
    ],
)
def test_products_of_8_bits_in_clusters(cuda, kind, values):
    """Tails of every side, each kind of scales; sums of int8 exact, promoted ones near; the same at every run."""
    from kernels.matmul_8bit.clustered import launch_clustered

    config = dict(zip(("BLOCK_M", "BLOCK_N", "CLUSTER"), values, strict=True))
    named = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}

    def drawn(rows, k, name):
        generator = torch.Generator(cuda).manual_seed(rows)
        if name == "int8":
            return torch.randint(-128, 128, (rows, k), device=cuda, dtype=torch.int8, generator=generator)
        return torch.rand((rows, k), device=cuda, generator=generator).to(named[name])

    left, right = kind.split() if " " in kind else (kind, kind)
    for m, n, k in ((130, 200, 2064), (17, 333, 3072), (300, 9, 2320)):
        a, b = drawn(m, k, left), drawn(n, k, right).t()
        exact = a.double() @ b.double()
        sa, sb, bias = (torch.rand(shape, device=cuda) for shape in ((m, 1), (1, n), (n,)))
        if kind == "int8":
            assert torch.equal(launch_clustered(a, b, None, None, None, False, config=config), exact.int())
        for of_a, of_b, fast in ((sa, sb, True), (sa[0, 0], sb[0, 0], False)):
            found = [launch_clustered(a, b, of_a, of_b, bias, fast, torch.float32, config=config) for _ in range(4)]
            error = (found[0] - (exact * of_a * of_b + bias)).abs().max() / exact.abs().max()
            assert error < (1e-6 if kind == "int8" else 0.1 if fast else 2e-3)
            assert all(torch.equal(c, found[0]) for c in found)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(
    ("alternate", "config"),
    [
        (False, {"GROUPS": 2, "BLOCK_N": 256, "STAGES": 3, "BUFFERS": 4}),
        (False, {"GROUPS": 3, "BLOCK_N": 128, "STAGES": 4, "BUFFERS": 2}),
        (True, {"BLOCK_N": 128, "STAGES": 5, "BUFFERS": 2}),
    ],
)
def test_linear_layers(cuda, alternate, config, residual):
    from kernels.matmul_epilogue.described import launch_specialized

    for m, n, k in SHAPES:
        x, weight, bias = matrix(cuda, m, k, "N"), matrix(cuda, n, k, "N"), matrix(cuda, 1, n, "N")[0]
        added = matrix(cuda, m, n, "N") if residual else None
        y, z = launch_specialized(
            alternate, x, weight, bias, added, "relu", 0.5, keep=True, config=config | {"BLOCK_K": 64, "GROUP_M": 8}
        )
        expected = 0.5 * (x.float() @ weight.float().t()) + bias.float()
        near(z, expected)
        near(y, expected.relu() + (added.float() if residual else 0.0))


@pytest.mark.parametrize("orders", ["NT", "TN", "TT"])
def test_linear_layers_of_operands_by_columns(cuda, orders):
    from kernels import linear

    for m, n, k in ((2184, 2056, 72), (1003, 4097, 331)):
        x, weight = matrix(cuda, m, k, orders[0]), matrix(cuda, n, k, orders[1])
        near(linear(x, weight), x.float() @ weight.float().t())


def packed_weights(cuda, bits, group, sizes, shape):
    """Sizes, dtype, packed weights, what they stand for in fp32, and a config: all of K in one part, and in three."""
    from kernels import dequantise_w4, dequantise_w8, pack_w4, pack_w8

    pack, dequantise = (pack_w4, dequantise_w4) if bits == 4 else (pack_w8, dequantise_w8)
    for (m, n, k), splits, dtype in itertools.product(sizes, (1, 3), (torch.bfloat16, torch.float16)):
        if k % (group or 32):
            continue
        made = pack(matrix(cuda, n, k, "N", dtype), group)
        config = dict(zip(("BLOCK_M", "W_GROUPS", "K_GROUPS", "SPLITS"), (*shape, splits), strict=True))
        yield (m, n, k), dtype, made, dequantise(made).float(), config


@pytest.mark.parametrize("shape", [(32, 1, 2), (32, 2, 2), (64, 1, 2), (64, 2, 2), (128, 3, 1), (256, 2, 1)])
@pytest.mark.parametrize(("bits", "group"), [(4, 128), (4, 64), (4, 32), (8, None), (8, 64)])
def test_packed_weights_by_tma(cuda, bits, group, shape):
    """Tails of every kind, tiles that are cut and that are not, several a program; half a stage at the end of k."""
    from kernels.matmul_w4a16.hopper_direct import multiply_direct

    sizes = (1, 16, 128), (300, 264, 1152), (257, 4096, 1024), (129, 72, 416)
    drawn = packed_weights(cuda, bits, group, sizes, shape)
    for (m, n, k), dtype, (words, scales, zeros, _, _, group_size), weights, config in drawn:
        x, y = matrix(cuda, m, k, "N", dtype), torch.full((m, n), torch.nan, device=cuda, dtype=dtype)
        multiply_direct(bits, x, words, scales, zeros, y, group_size, config=config, programs=40)
        near(y, x.float() @ weights.t())


@pytest.mark.parametrize("shape", [(64, 1, 2), (64, 2, 1), (128, 1, 2), (128, 2, 1), (256, 2, 1)])
@pytest.mark.parametrize(("bits", "group"), [(4, 128), (4, 64), (4, 32), (8, None), (8, 64)])
def test_gradients_by_packed_weights_by_tma(cuda, bits, group, shape):
    """The same of dx [m, k]: half a stage at the end of n."""
    from kernels.matmul_w4a16.hopper_direct_pull import pull_direct

    sizes = (1, 16, 128), (300, 1160, 384), (257, 1024, 4096), (129, 424, 96)
    drawn = packed_weights(cuda, bits, group, sizes, shape)
    for (m, n, k), dtype, (words, scales, zeros, _, _, group_size), weights, config in drawn:
        dy, dx = matrix(cuda, m, n, "N", dtype), torch.full((m, k), torch.nan, device=cuda, dtype=dtype)
        pull_direct(bits, dy, words, scales, zeros, dx, group_size, config=config, programs=40)
        near(dx, dy.float() @ weights)


@pytest.mark.parametrize("shape", [(32, 2, 2), (64, 1, 2), (64, 2, 2), (128, 1, 2), (128, 3, 1), (256, 2, 1)])
@pytest.mark.parametrize("splits", [2, 3, 5, 8])
def test_parts_of_packed_weights_added_in_clusters(cuda, splits, shape):
    """Tails of m, n and k, groups without a row; the same bits at every run, and by a graph's, whenever sums arrive."""
    from kernels import dequantise_w4, pack_w4
    from kernels.matmul_w4a16.direct_space import in_clusters
    from kernels.matmul_w4a16.hopper_direct import multiply_direct

    config = dict(zip(("BLOCK_M", "W_GROUPS", "K_GROUPS", "SPLITS"), (*shape, splits), strict=True))
    for m, n, k in ((17, 72, 2080), (130, 520, 4096), (255, 264, 3072), (320, 456, 2048)):
        tiles = -(-m // shape[0]) * -(-n // (64 * shape[1]))
        if not in_clusters(tiles, splits, 132):
            continue
        packed, x = pack_w4(matrix(cuda, n, k, "N"), 32), matrix(cuda, m, k, "N")
        words, scales, zeros, _, _, group = packed
        found = [torch.full((m, n), torch.nan, device=cuda, dtype=x.dtype) for _ in range(5)]
        for y in found:
            multiply_direct(4, x, words, scales, zeros, y, group, config=config, programs=132)
        near(found[0], x.float() @ dequantise_w4(packed).float().t())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            multiply_direct(4, x, words, scales, zeros, found[1], group, config=config, programs=132)
        found[1].fill_(torch.nan)
        graph.replay()
        assert all(torch.equal(y, found[0]) for y in found)


@pytest.mark.parametrize("shape", [(64, 1, 2), (128, 1, 2)])
@pytest.mark.parametrize("splits", [2, 3, 5, 8])
@pytest.mark.parametrize("bits", [4, 8])
def test_parts_of_packed_weights_gradient_added_in_clusters(cuda, bits, splits, shape):
    """Tails of m, n and k; columns in their order; the same bits at every run."""
    from kernels import dequantise_w4, dequantise_w8, pack_w4, pack_w8
    from kernels.matmul_w4a16.hopper_direct_pull import pull_direct
    from kernels.matmul_w4a16.pull_space import pulls_in_clusters

    pack, dequantise = (pack_w4, dequantise_w4) if bits == 4 else (pack_w8, dequantise_w8)
    config = dict(zip(("BLOCK_M", "W_GROUPS", "K_GROUPS", "SPLITS"), (*shape, splits), strict=True))
    for m, n, k in ((17, 2088, 96), (130, 4096, 544), (255, 3080, 288)):
        if not pulls_in_clusters(shape, -(-m // shape[0]) * -(-k // 64), splits, 132):
            continue
        packed, dy = pack(matrix(cuda, n, k, "N"), 32), matrix(cuda, m, n, "N")
        words, scales, zeros, _, _, group = packed
        found = [torch.full((m, k), torch.nan, device=cuda, dtype=dy.dtype) for _ in range(5)]
        for dx in found:
            pull_direct(bits, dy, words, scales, zeros, dx, group, config=config, programs=132)
        near(found[0], dy.float() @ dequantise(packed).float())
        assert all(torch.equal(dx, found[0]) for dx in found)


@pytest.mark.parametrize(
    "shape", [(16, 1), (16, 3), (32, 2), (32, 8), (64, 1), (64, 2), (64, 8), (128, 1), (128, 4), (256, 1), (256, 3)]
)
@pytest.mark.parametrize(("bits", "group"), [(4, 128), (4, 64), (4, 32), (8, None), (8, 64)])
def test_small_products_of_packed_weights(cuda, bits, group, shape):
    """Tails of every kind, steps that a program has at once and that it has not; the same bits at every run.

    Where a row has one scale, sums are scaled, so they are compared with weights that are not rounded.
    """
    from kernels import dequantise_w4, dequantise_w8, pack_w4, pack_w8
    from kernels.matmul_w4a16.hopper_light import multiply_light
    from kernels.matmul_w8a16 import dequantised

    pack, dequantise = (pack_w4, dequantise_w4) if bits == 4 else (pack_w8, dequantise_w8)
    config = dict(zip(("BLOCK_M", "CLUSTER"), shape, strict=True))
    sizes, dtypes = ((1, 16, 128), (300, 264, 1152), (65, 520, 4096), (129, 72, 416)), (torch.bfloat16, torch.float16)
    for (m, n, k), dtype in zip(sizes, itertools.cycle(dtypes), strict=False):
        if k % (group or 32):
            continue
        packed = pack(matrix(cuda, n, k, "N", dtype), group)
        x = matrix(cuda, m, k, "N", dtype)
        words, scales, zeros, _, _, group_size = packed
        found = [torch.full((m, n), torch.nan, device=cuda, dtype=dtype) for _ in range(3)]
        for y in found:
            multiply_light(bits, x, words, scales, zeros, y, group_size, config=config)
        exact = dequantise(packed) if group_size else dequantised(words, scales.double(), zeros, n, k, 0)
        near(found[0], x.float() @ exact.float().t())
        assert all(torch.equal(y, found[0]) for y in found)


@pytest.mark.parametrize(
    "shape",
    [(16, 64, 1), (16, 128, 5), (32, 64, 8), (32, 128, 1), (64, 64, 2), (64, 128, 6), (128, 64, 3), (128, 128, 8)],
)
@pytest.mark.parametrize(("bits", "group"), [(4, 128), (4, 64), (4, 32), (8, None), (8, 64)])
def test_gradients_of_small_products_of_packed_weights(cuda, bits, group, shape):
    """The same of dx [m, k]: rows of W for clusters in unequal parts, half a step at the end, half a tile's columns."""
    from kernels import dequantise_w4, dequantise_w8, pack_w4, pack_w8
    from kernels.matmul_w4a16.hopper_light_pull import pull_light

    pack, dequantise = (pack_w4, dequantise_w4) if bits == 4 else (pack_w8, dequantise_w8)
    config = dict(zip(("BLOCK_M", "COLUMNS", "CLUSTER"), shape, strict=True))
    sizes, dtypes = ((1, 16, 128), (130, 1160, 384), (27, 4096, 1152), (70, 424, 96)), (torch.bfloat16, torch.float16)
    for (m, n, k), dtype in zip(sizes, itertools.cycle(dtypes), strict=False):
        if k % (group or 32):
            continue
        packed, dy = pack(matrix(cuda, n, k, "N", dtype), group), matrix(cuda, m, n, "N", dtype)
        words, scales, zeros, _, _, group_size = packed
        found = [torch.full((m, k), torch.nan, device=cuda, dtype=dtype) for _ in range(3)]
        for dx in found:
            pull_light(bits, dy, words, scales, zeros, dx, group_size, config=config)
        near(found[0], dy.float() @ dequantise(packed).float())
        assert all(torch.equal(dx, found[0]) for dx in found)


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize(("bits", "group"), [(4, 128), (4, 32), (8, None), (8, 64)])
def test_packed_weights_converted_in_shared_memory(cuda, bits, group, rows):
    """Tails of every kind, sums in unequal parts, rows of y off 16 bytes; several tiles a program."""
    from kernels import dequantise_w4, dequantise_w8, pack_w4, pack_w8
    from kernels.matmul_w4a16.hopper_converted import multiply_converted

    pack, dequantise = (pack_w4, dequantise_w4) if bits == 4 else (pack_w8, dequantise_w8)
    for (m, n, k), splits, dtype in itertools.product(
        ((1, 16, 128), (300, 264, 1152), (257, 4096, 1024), (129, 71, 384)), (1, 3), (torch.bfloat16, torch.float16)
    ):
        packed = pack(matrix(cuda, n, k, "N", dtype), group)
        weight, a = dequantise(packed).float(), matrix(cuda, m, k, "N", dtype)
        c = torch.full((m, n), torch.nan, device=cuda, dtype=dtype)
        words, scales, zeros, _, _, group_size = packed
        config = {"ROWS": rows, "GROUP_M": 8, "SPLITS": splits}
        multiply_converted(
            bits, a, words, scales, zeros, c, k, group_size,
            config=config, programs=gpu_of(cuda).sms,
        )  # fmt: skip
        near(c, a.float() @ weight.t())


@pytest.mark.parametrize("config", [(32, 128, 4), (32, 256, 8)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 64), (4, 128), (8, None), (8, 32), (8, 128)])
def test_packed_weights_written_out(cuda, bits, group, dtype, config):
    """Bit by bit what plain torch makes of them; tails of rows, and half a tile of columns at the end."""
    from kernels import matmul_w8a16, pack_w4, pack_w8
    from kernels.matmul_w4a16 import cases
    from kernels.matmul_w4a16.dequantise import write_weights

    config = dict(zip(("BLOCK_N", "BLOCK_K", "num_warps"), config, strict=True))
    for (n, k), symmetric in itertools.product(((1, 128), (40, 384), (33, 2176), (100, 96)), (False, True)):
        if k % (group or 32):
            continue
        weight = matrix(cuda, n, k, "N", dtype)
        packed = pack_w4(weight, group, symmetric) if bits == 4 else pack_w8(weight, group)
        words, scales, zeros, _, _, size = packed
        w = torch.full((n, k), torch.nan, device=cuda, dtype=dtype)
        write_weights(bits, words, scales, zeros, w, size, config=config)
        dequantised = (cases if bits == 4 else matmul_w8a16).dequantised
        assert torch.equal(w, dequantised(words, scales.float(), zeros, n, k, size).to(dtype))


@pytest.mark.parametrize(("n", "k"), [(16, 4096), (4096, 16)], ids=["gradient", "product"])
def test_a_group_ends_in_a_tile_after_one_that_still_leaves_its_buffers(cuda, n, k):
    """Sums of one step, so that a program writes a tile right after another; what is a race shows in some of ten."""
    from kernels import grouped_mm

    rows, groups = 300, 64
    a, dc = matrix(cuda, rows * groups, k, "N"), matrix(cuda, rows * groups, n, "N")
    b = torch.stack([matrix(cuda, k, n, "N")] * groups)
    offs = rows * torch.arange(1, groups + 1, device=cuda, dtype=torch.int32)
    expected, expected_gradient = a.float() @ b[0].float(), dc.float() @ b[0].float().t()
    for _ in range(10):
        leaf = a.detach().requires_grad_()
        c = grouped_mm(leaf, b, offs=offs)
        near(c.detach(), expected)
        near(torch.autograd.grad(c, leaf, dc)[0], expected_gradient)


@pytest.mark.parametrize("alternate", [False, True], ids=["sharing a tile", "alternating"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ragged_sums(cuda, dtype, alternate):
    """Groups of no rows, of less than a block and of whole ones, rows of no group; from one tile a program to many."""
    from kernels.grouped_matmul import hopper_sums

    make, config = hopper_sums.sums_by_tma, {"GROUPS": 2, "ROWS": 64, "BLOCK_N": 256, "STAGES": 4, "BUFFERS": 2}
    if alternate:
        make, config = hopper_sums.alternating_sums, {"ROWS": 128, "BLOCK_N": 128, "STAGES": 6, "BUFFERS": 1}
    ends = [0, 5, 69, 69, 197, 330, 1100, 1100]
    offs = torch.tensor(ends, device=cuda, dtype=torch.int32)
    for m, n in ((8, 8), (136, 264), (1032, 2056), (2048, 1408), (4104, 3000)):
        a, b = matrix(cuda, m, 1111, "T", dtype), matrix(cuda, 1111, n, "N", dtype)
        b[1100:] = torch.inf
        c = torch.full((len(ends), m, n), torch.nan, device=cuda, dtype=dtype)
        make(a, b, offs, c, config=config | {"BLOCK_K": 64, "GROUP_M": 8})
        for group, (start, end) in enumerate(itertools.pairwise([0, *ends])):
            near(c[group], a[:, start:end].float() @ b[start:end].float())
