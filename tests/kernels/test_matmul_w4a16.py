"""Linear layers with packed weights of 4 and 8 bits, interpreted: format, values, gradients, refusals, modules."""

import itertools

import pytest
import torch
from atlas.declaration import case
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from defaults_under_test import assert_default_fits

from kernels import (
    dequantise_w4,
    dequantise_w8,
    linear_w4a16,
    linear_w8a16,
    matmul_w4a16,
    matmul_w8a16,
    nn,
    pack_w4,
    pack_w8,
)
from kernels.common.packed import GROUP_SIZES, by_row_tiles, of_row_tiles
from kernels.matmul_w4a16.fragments import ring_stages, stage_bytes
from kernels.matmul_w4a16.packing import shuffle_w4, unshuffle_w4
from kernels.matmul_w4a16.spaces import FRAGMENTS_SPACE

W4, W8 = matmul_w4a16, matmul_w8a16
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", "match" in block)}
EITHER = pytest.mark.parametrize(
    ("pack", "linear", "dequantise"),
    [(pack_w4, linear_w4a16, dequantise_w4), (pack_w8, linear_w8a16, dequantise_w8)],
    ids=["w4", "w8"],
)


def randn(*shape, seed=0, dtype=torch.float16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_a_packed_nibble_lies_where_the_file_says():
    q = torch.randint(0, 16, (40, 192), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    words = shuffle_w4(q).view(3, 3, 32, 4)  # tiles along n and k, lanes, words
    for n in range(0, 40, 3):
        for k in range(0, 192, 5):
            tile_n, h, g = n // 16, n // 8 % 2, n % 8
            tile_k, half, t, word, two, one = k // 64, k // 32 % 2, k // 8 % 4, k // 4 % 2, k // 2 % 2, k % 2
            found = int(words[tile_n, tile_k, 4 * g + t, 2 * half + word]) & 0xFFFFFFFF
            assert found >> 4 * (h + 2 * two + 4 * one) & 15 == q[n, k]


def test_a_packed_byte_has_its_sign_in_the_next_byte():
    q = torch.randint(-127, 128, (24, 64), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    found = W8.shuffle_w8(q).view(torch.uint8).view(2, 2, 32, 4, 4)  # tiles along n and k, lanes, words, bytes
    for n in range(24):
        for k in range(0, 64, 3):
            tile_n, h, g, tile_k, t, word, one = n // 16, n // 8 % 2, n % 8, k // 32, k // 8 % 4, k // 2 % 4, k % 2
            four = found[tile_n, tile_k, 4 * g + t, word].tolist()
            byte = h + 2 * one
            assert (four[byte] & 127) * (-1 if four[(byte + 1) % 4] > 127 else 1) == q[n, k]


def test_scales_of_rows_eight_apart_lie_side_by_side():
    scales = torch.arange(40.0)[:, None] + torch.tensor([0.0, 100.0])
    tiled = by_row_tiles(scales)
    assert tiled.shape == (3, 2, 16)
    for row in range(40):
        tile, h, g = row // 16, row // 8 % 2, row % 8
        assert tiled[tile, 1, 2 * g + h] == 100 + row
    assert torch.equal(of_row_tiles(tiled, 40), scales)


@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (16, 64), (33, 96), (48, 160)])
def test_shuffling_is_undone(rows, columns):
    q = torch.randint(0, 16, (rows, columns), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    assert torch.equal(unshuffle_w4(shuffle_w4(q), rows, columns), q)
    signed = (q.to(torch.int8) - 8) * 15
    assert torch.equal(W8.unshuffle_w8(W8.shuffle_w8(signed), rows, columns), signed)


@pytest.mark.parametrize(("symmetric", "group", "most"), [(False, 32, 0.09), (False, 128, 0.11), (True, 128, 0.13)])
def test_quantising_normal_weights_to_4_bits_costs_a_tenth_of_them(symmetric, group, most):
    weight = randn(32, 512)
    error = dequantise_w4(pack_w4(weight, group, symmetric)).float() - weight.float()
    assert 0.06 < float(error.square().mean().sqrt()) < most


def test_quantising_normal_weights_to_8_bits_costs_a_hundredth_of_them():
    weight = randn(32, 512)
    error = dequantise_w8(pack_w8(weight)).float() - weight.float()
    assert 0.005 < float(error.square().mean().sqrt()) < 0.011


@EITHER
def test_a_group_of_zeros_and_one_of_equal_weights_stay_what_they_are(pack, linear, dequantise):
    # a scale of 0 would make NaN of the first
    weight = torch.cat([torch.zeros(16, 32), torch.full((16, 32), 0.5)], 1).half()
    torch.testing.assert_close(dequantise(pack(weight, 32)).float(), weight.float(), rtol=1e-3, atol=0)


@EITHER
def test_the_product_and_its_gradient_are_those_of_the_dequantised_weights(pack, linear, dequantise):
    packed = pack(randn(40, 96), 32)
    weight = dequantise(packed).double()
    x, dy = randn(2, 3, 96, seed=1).requires_grad_(), randn(2, 3, 40, seed=2)
    y = linear(x, packed)
    y.backward(dy)
    torch.testing.assert_close(y.double(), x.detach().double() @ weight.t(), rtol=2e-3, atol=2e-2)
    torch.testing.assert_close(x.grad.double(), dy.double() @ weight, rtol=2e-3, atol=2e-2)


@EITHER
@pytest.mark.parametrize("rows", [7, 65])
def test_gradients_of_few_rows_and_of_many_agree_and_have_gradients(pack, linear, dequantise, rows):
    # up to 64 rows one kernel brings weights to 16 bits where it multiplies: rows of n in parts, tails everywhere
    packed = pack(randn(200, 96), 32)
    weight = dequantise(packed).double()
    x, dy = randn(rows, 96, seed=1).requires_grad_(), randn(rows, 200, seed=2).requires_grad_()
    (dx,) = torch.autograd.grad(linear(x, packed), x, dy, create_graph=True)
    torch.testing.assert_close(dx.double(), dy.detach().double() @ weight, rtol=2e-3, atol=4e-2)
    (ddy,) = torch.autograd.grad(dx, dy, x.detach())
    torch.testing.assert_close(ddy.double(), x.detach().double() @ weight.t(), rtol=2e-3, atol=4e-2)


def test_torch_compile_takes_it_whole_forward_and_backward():
    packed, x = pack_w4(randn(16, 64), 64), randn(3, 64, seed=1).requires_grad_()
    compiled = torch.compile(lambda t: linear_w4a16(t, packed), fullgraph=True, backend="aot_eager")
    y = compiled(x)
    torch.testing.assert_close(y, linear_w4a16(x, packed))
    y.sum().backward()
    assert x.grad is not None


def test_torch_finds_nothing_wrong_with_the_operators():
    words, scales, zeros, n, k, group = pack_w4(randn(16, 64), 64)
    operators = torch.ops.kernel_atlas
    torch.library.opcheck(operators.matmul_w4a16.default, (randn(3, k), words, scales, zeros, n, group))
    torch.library.opcheck(operators.matmul_w4a16_dequantise.default, (words, scales, zeros, n, k, group))
    torch.library.opcheck(operators.matmul_w4a16_pull.default, (randn(3, n), words, scales, zeros, n, k, group))


@EITHER
def test_an_empty_input_gives_an_empty_output(pack, linear, dequantise):
    assert linear(torch.empty(0, 32).half(), pack(randn(16, 32), 32)).shape == (0, 16)


@EITHER
def test_what_does_not_fit_is_refused_by_name(pack, linear, dequantise):
    packed = pack(randn(16, 64), 32)
    for given, error, message in (
        ((randn(2, 64, dtype=torch.bfloat16), packed), TypeError, "bfloat16"),
        ((randn(2, 32), packed), ValueError, "64 features"),
    ):
        with pytest.raises(error, match=message):
            linear(*given)
    for given, error, message in (
        ((torch.ones(16, 64), 32), TypeError, "float32"),
        ((randn(64), 32), ValueError, "two dimensions"),
        ((randn(16, 64), 48), ValueError, "48"),
        ((randn(16, 96), 64), ValueError, "multiple"),
    ):
        with pytest.raises(error, match=message):
            pack(*given)


@pytest.mark.parametrize("kind", [nn.LinearW4, nn.LinearW8])
def test_a_module_has_the_layers_output_and_saves_its_packed_weights(kind):
    layer = torch.nn.Linear(64, 16).half()
    module, x = kind.of(layer, 32), randn(3, 64)
    torch.testing.assert_close(module(x), layer(x), rtol=0, atol=0.3)
    twin = kind.of(torch.nn.Linear(64, 16).half(), 32)
    twin.load_state_dict(module.state_dict())
    assert torch.equal(twin(x), module(x))
    assert not any(name != "bias" for name, _ in module.named_parameters())
    with pytest.raises(TypeError, match="pack them again"):
        module.float()


@pytest.mark.parametrize("kind", [nn.LinearW4, nn.LinearW8])
def test_a_module_keeps_a_bias_frozen_and_drops_no_activation(kind):
    layer = torch.nn.Linear(64, 16, dtype=torch.float16).requires_grad_(False)
    assert not kind.of(layer, 32).bias.requires_grad
    with pytest.raises(ValueError, match="no activation: take it out, 'relu'"):
        kind.of(nn.Linear(64, 16, dtype=torch.float16, activation="relu"), 32)


# Every size of a step, whether its config is worth a trial or not.
FRAGMENTS_CONFIGS = [
    dict(zip(FRAGMENTS_SPACE, values, strict=True)) for values in itertools.product(*FRAGMENTS_SPACE.values())
]
WIDTHS = [(4, W4.DECLARATION, GROUP_SIZES), (8, W8.DECLARATION, (0, *GROUP_SIZES))]


FEW = ("fragments", "shared")


def few_rows(problem, **sizes):
    return case(problem.dtype, **dict(problem.sizes) | sizes)


@pytest.mark.parametrize(("bits", "declaration", "groups"), WIDTHS, ids=["w4", "w8"])
def test_a_ring_has_two_steps_or_more_whatever_the_config(bits, declaration, groups):
    # of one step alone the kernel reads what it has not waited for
    for config, group, m in itertools.product(FRAGMENTS_CONFIGS, groups, (1, 9, 17)):
        stages, own, shared = ring_stages(bits, m, group, config)
        assert stages >= 2
        assert shared >= stages * stage_bytes(bits, group, config)
        assert not own or shared <= 48 * 1024  # what ptxas takes of static shared memory


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize(("bits", "declaration", "groups"), WIDTHS, ids=["w4", "w8"])
def test_defaults_for_few_rows_fit_every_group_size(bits, declaration, groups, name):
    # the sizes of k are shorter than, and no multiple of, what the warps take in a turn
    variant, hopper = declaration.forward.variant(name), GPUS["h200"]
    some = declaration.edge_cases[0]
    for m, n, k, group in itertools.product(range(1, 65), (1, 40, 8192), (128, 384, 8192), groups):
        problem = few_rows(some, m=m, n=n, k=k, group=group)
        if not variant.unsupported(problem, hopper):
            assert not variant.fits(variant.default(problem, hopper), problem, hopper), str(problem)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("declaration", [W4.DECLARATION, W8.DECLARATION], ids=lambda d: d.name)
def test_a_config_that_is_tuned_is_certified_on_a_case_that_it_fits(declaration, name):
    # where none fits, cases that the config was not made for have to do
    variant, hopper = declaration.forward.variant(name), GPUS["h200"]
    for problem in declaration.cases(hopper):
        if not variant.unsupported(problem, hopper):
            edges = [edge for edge in declaration.edge_cases if not variant.unsupported(edge, hopper)]
            for config in variant.configs(problem, hopper):
                found = [edge for edge in edges if not variant.fits(config, edge, hopper)]
                assert any(edge.dtype == problem.dtype for edge in found), (str(problem), config)


@pytest.mark.parametrize("declaration", [W4.DECLARATION, W8.DECLARATION], ids=lambda d: d.name)
@pytest.mark.parametrize("name", GPUS)
def test_defaults_are_points_of_the_space_that_fit(name, declaration):
    for problem in declaration.cases(GPUS[name]):
        for variant in declaration.forward.variants:
            if not variant.unsupported(problem, GPUS[name]):
                assert_default_fits(variant, problem, GPUS[name])


def chosen(declaration, problem, gpu="h200"):
    """The first variant that takes a case, which a call runs untuned."""
    return next(v.name for v in declaration.forward.variants if not v.unsupported(problem, GPUS[gpu]))


@pytest.mark.parametrize("name", ["h100", "h200"])
@pytest.mark.parametrize(("sizes", "four", "eight"), [
    ((32, 6144, 2560), "direct", "direct"),  # 4 bits 12.3 us and 12.2 by `shared` (H200), 8 bits 11.8 and 14.4
    ((20, 1536, 8960), "direct", "direct"),  # 12.2, 15.7; 12.2, 17.5
    ((20, 4096, 4096), "direct", "direct"),  # 11.4, 13.1; 12.4, 14.9
    ((32, 4608, 3584), "direct", "direct"),  # 12.9, 13.8
    ((32, 2304, 3072), "light", "light"),  # an estimate of 6.5; by `direct` 8.8, by `shared` 9.5
    ((32, 9728, 3584), "shared", "direct"),  # 19.9, 19.5; 19.2, 21.8
    ((32, 8192, 8192), "shared", "shared"),  # 24.2, 22.7
    ((32, 14336, 4096), "shared", "shared"),
    ((16, 4096, 4096), "shared", "shared"),
    ((8, 1024, 2048), "fragments", "fragments"),
    ((17, 1024, 2048), "light", "light"),
    ((20, 1023, 2048), "shared", "shared"),
    ((32, 4096, 4096), "direct", "direct"),  # 4 bits 10.4, by `light` 10.9
    ((20, 4097, 4096), "shared", "shared"),
    ((33, 8192, 8192), "direct", "direct"),  # `light` has one program for each tile there
], ids=str)  # fmt: skip
def test_17_to_32_rows_go_to_whom_measurements_say(sizes, four, eight, name):
    for bits, declaration, groups in WIDTHS:
        for group, dtype, zeros in itertools.product(groups, ("bf16", "fp16"), (True, False)):
            m, n, k = sizes
            problem = case(dtype, m=m, n=n, k=k, group=group, zeros=zeros and bits == 4)
            assert chosen(declaration, problem, name) == (four if bits == 4 else eight), str(problem)


@pytest.mark.parametrize(("sizes", "config"), [  # us of `direct` (up to 32 rows `shared`) and of `light` on an H200
    ((16, 2048, 1536), (16, 3)),  # 4 bits: 6.6, 4.4
    ((9, 1536, 2816), (16, 4)),  # 8 bits: 6.5, 5.5
    ((9, 3072, 2048), (16, 2)),  # 4 bits: 6.3, 5.9
    ((27, 1152, 3584), (32, 5)),  # 4 bits: 9.8, 5.6
    ((24, 512, 768), (32, 3)),  # 8 bits: 6.2, 3.3
    ((24, 5120, 1280), (32, 1)),  # 8 bits, `direct`: 7.6, 7.0
    ((32, 2560, 2560), (32, 2)),  # 4 bits, `direct`: 8.2, 7.2
    ((66, 2304, 2560), (128, 3)),  # 8 bits: 10.4, 8.8
    ((101, 1536, 2816), (128, 4)),  # 4 bits: 9.0, 7.6
    ((128, 2048, 1536), (64, 2)),  # 8 bits: 7.6, 6.3
    ((509, 1024, 1536), (128, 2)),  # 4 bits: 8.9, 7.8
    ((200, 1000, 4960), (128, 3)),  # 4 bits: 14.6, 11.5
    ((1000, 520, 4096), (256, 3)),  # 4 bits: 18.0, 15.7
    ((900, 1536, 1024), (256, 1)),  # 8 bits: 10.9, 9.7
    ((384, 896, 4864), None),  # 4 bits: 15.0, 14.7
    ((160, 2560, 2560), None),  # 4 bits: 11.8, 13.5
    ((700, 768, 2048), None),  # 4 bits: 10.4, 11.1
    ((2048, 64, 256), None),
    ((8, 72, 2080), None),
], ids=str)  # fmt: skip
def test_small_products_go_to_whom_measurements_say(sizes, config):
    m, n, k = sizes
    for _, declaration, groups in WIDTHS:
        problem = case("bf16", m=m, n=n, k=k, group=groups[0], zeros=False)
        variant = declaration.forward.variant("light")
        assert bool(variant.unsupported(problem, GPUS["h200"])) == (config is None)
        assert config is None or tuple(variant.default(problem, GPUS["h200"]).values()) == config
        assert (chosen(declaration, problem) == "light") == (config is not None)


def test_light_has_a_config_for_all_that_it_takes():
    heights = 9, 16, 17, 32, 33, 64, 100, 256, 300, 1024
    for m, n, k in itertools.product(heights, (8, 72, 2048, 8192), (32, 96, 1024, 2**20)):
        problem = case("bf16", m=m, n=n, k=k, group=32, zeros=True)
        variant = W4.DECLARATION.forward.variant("light")
        if not variant.unsupported(problem, GPUS["h200"]):
            config = variant.default(problem, GPUS["h200"])
            assert not variant.fits(config, problem, GPUS["h200"]), str(problem)


@pytest.mark.parametrize(("bits", "group", "sizes", "config"), [
    (8, 0, (256, 5120, 6144), (128, 3, 1, 2)),  # 30.2 us, 33.1 by 256, 2, 1, 3
    (4, 64, (640, 2048, 5504), (128, 3, 1, 2)),  # 31.8, 36.4 by 128, 2, 1, 3
    (8, 128, (400, 2560, 4096), (256, 2, 1, 3)),  # 24.8, 26.2
    (4, 128, (512, 2048, 5632), (256, 2, 1, 4)),  # 23.7, 26.4 by c128, 2, 1, 2
])  # fmt: skip
def test_clusters_of_two_add_the_sums_of_three_groups_where_measured_ahead(bits, group, sizes, config):
    m, n, k = sizes
    problem = case("bf16", m=m, n=n, k=k, group=group, zeros=False)
    variant = WIDTHS[bits // 4 - 1][1].forward.variant("direct")
    assert tuple(variant.default(problem, GPUS["h200"]).values()) == config
    assert not variant.fits(variant.default(problem, GPUS["h200"]), problem, GPUS["h200"])


@pytest.mark.parametrize(("bits", "declaration", "groups"), WIDTHS, ids=["w4", "w8"])
def test_direct_has_a_config_for_all_rows_that_it_takes(bits, declaration, groups):
    variant, hopper = declaration.forward.variant("direct"), GPUS["h200"]
    for m, n, k in itertools.product((17, 24, 32, 33), (8, 72, 8192, 16896, 16904, 65536), (64, 128, 1024, 14336)):
        problem = case("bf16", m=m, n=n, k=k, group=64, zeros=bits == 4)
        assert chosen(declaration, problem) != "tiles", str(problem)
        if not variant.unsupported(problem, hopper):
            config = variant.default(problem, hopper)
            assert not variant.fits(config, problem, hopper), str(problem)
            assert config["BLOCK_M"] == 32 or m > 32 or n > 16896, str(problem)
