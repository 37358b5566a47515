"""Products of 8-bit matrices on the interpreter: values, layouts, scales, refusals; and what they compile to."""

import pytest
import torch
from atlas.declaration import case
from atlas.declaration.hardware import INTERPRETER
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from atlas.validation.problems import Problem
from defaults_under_test import assert_defaults_fit

from kernels.matmul_8bit import DECLARATION, int_mm, quantise, scaled_mm
from kernels.matmul_8bit.cases import call

CPU = torch.device("cpu")
WORK = DECLARATION.forward
GLUON = ("clustered", "specialized", "alternating")  # not interpreted
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", "match" in block)}
ONE = torch.ones(())


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def randint(*shape, seed=0):
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


def assert_close(c, a, b, scale_a=1.0, scale_b=1.0, bias=0.0):
    """Within a rounding to bf16 and what a few cancelling terms leave of one."""
    expected = (a.double() @ b.double()) * scale_a * scale_b + bias
    torch.testing.assert_close(c.double(), expected, rtol=2**-7, atol=2**-7 * float(expected.square().mean().sqrt()))


@pytest.mark.parametrize("left", [E4M3, E5M2])
@pytest.mark.parametrize("right", [E4M3, E5M2])
def test_fp8_of_both_kinds_multiplies_as_in_torch(left, right):
    a, b = randn(20, 48, dtype=left), randn(24, 48, seed=1, dtype=right).t()
    if left == right == E5M2:  # neither has torch: no tensor core takes it
        with pytest.raises(TypeError, match="float8_e5m2, torch.float8_e5m2"):
            scaled_mm(a, b, ONE, ONE)
    else:
        assert_close(scaled_mm(a, b, torch.tensor(0.5), torch.tensor([[3.0]])), a, b, 0.5, 3.0)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("fast", [False, True])
def test_scales_of_rows_and_columns_and_a_bias_are_applied_before_the_one_rounding(out_dtype, fast):
    a, b, bias = randn(20, 40, dtype=E4M3), randn(24, 40, seed=1, dtype=E4M3).t(), randn(24, seed=4)
    scale_a, scale_b = randn(20, 1, seed=2), randn(1, 24, seed=3)
    c = scaled_mm(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum=fast)
    assert c.dtype == out_dtype
    assert_close(c, a, b, scale_a, scale_b, bias)


def test_int8_is_exact_and_its_scaled_product_rounded_once():
    a, b = randint(33, 300), randint(300, 20, seed=1)
    exact = a.long() @ b.long()
    assert torch.equal(int_mm(a, b), exact.int())
    scale_a, scale_b = randn(33, 1, seed=2), randn(1, 20, seed=3)
    assert_close(scaled_mm(a, b, scale_a, scale_b), a, b, scale_a, scale_b)
    torch.testing.assert_close(scaled_mm(a, b, ONE, ONE, out_dtype=torch.float32), exact.float())


@pytest.mark.parametrize("variant", [v for v in WORK.variants if v.name not in GLUON], ids=lambda v: v.name)
@pytest.mark.parametrize("problem", [p for p in DECLARATION.edge_cases if p["m"] == 70], ids=str)
def test_every_variant_computes_tails_in_every_form(problem, variant):
    # rows aligned to 16 bytes, so that descriptors are not left for pointers
    drawn = Problem(DECLARATION, "forward", problem, CPU, seed=1)
    assert not drawn.judge(variant.launch(**drawn.inputs, config=variant.default(problem, INTERPRETER))).reason


@pytest.mark.parametrize("variant", ["descriptor", "persistent"])
def test_a_wide_tile_is_written_in_parts(variant):
    # 128 x 256 of int32: four parts, of which tails lie in the third; two tiles a program of the four there are
    a, b = randint(300, 64), randint(464, 64, seed=1).t()
    config = dict(zip(WORK.variant(variant).space, (128, 256, 64, 8, 8, 3), strict=True))
    c = WORK.variant(variant).launch(a, b, None, None, None, False, config=config)
    assert torch.equal(c, (a.int() @ b.int()))


def test_the_tolerance_is_that_of_the_output_and_not_of_fp8():
    # products of fp8 are exact: an error of a rounding to fp8, 6 %, is one
    problem = next(p for p in DECLARATION.edge_cases if p["m"] == 128 and p.dtype == "fp8e4m3")
    drawn = Problem(DECLARATION, "forward", problem, CPU, seed=1)
    right = drawn.expected[0].bfloat16()
    assert not drawn.judge(right).reason
    assert drawn.judge(right.to(E4M3).bfloat16()).reason


@pytest.mark.parametrize("transposed", ["neither", "a", "b", "both"])
@pytest.mark.parametrize(
    "draw", [randint, lambda *shape, seed=0: randn(*shape, seed=seed, dtype=E4M3)], ids=["i8", "f8"]
)
def test_layouts_other_than_torch_takes_are_right_too(transposed, draw):
    a = draw(32, 18).t() if transposed in ("a", "both") else draw(18, 32)
    b = draw(48, 32, seed=1).t() if transposed in ("neither", "a") else draw(32, 48, seed=1)
    assert_close(scaled_mm(a, b, ONE, ONE), a, b)
    wide = torch.cat([b, b], dim=1)[:, ::2]  # neither rows nor columns are contiguous
    assert_close(scaled_mm(a[1:], wide, ONE, ONE), a[1:], wide)


@pytest.mark.parametrize(("m", "n", "k"), [(3, 4, 0), (0, 4, 5), (3, 0, 5)])
def test_sums_of_nothing_are_the_bias_and_empty_products_empty(m, n, k):
    bias = randn(n, seed=2)
    c = scaled_mm(randn(m, k, dtype=E4M3), randn(k, n, dtype=E4M3), ONE, ONE, bias, torch.float32)
    assert torch.equal(c, bias.expand(m, n))
    assert torch.equal(int_mm(randint(m, k), randint(k, n)), torch.zeros(m, n, dtype=torch.int32))


@pytest.mark.parametrize(
    ("dtype", "rounding", "spacing"), [(E4M3, 2**-4, 2**-9), (E5M2, 2**-3, 2**-16), (torch.int8, 0.0, 1.0)]
)
def test_quantised_rows_carry_one_rounding_of_their_own_scale(dtype, rounding, spacing):
    # spacing: between the smallest numbers, of which half may be lost whatever the number
    x = randn(16, 64, dtype=torch.bfloat16) * torch.logspace(-6, 6, 16)[:, None]
    x[3] = 0.0  # a row of zeros stays one
    values, scale = quantise(x, dtype)
    assert values.dtype == dtype and scale.shape == (16, 1) and scale.dtype == torch.float32
    back = values.double() * scale.double()
    largest = 127 if dtype == torch.int8 else torch.finfo(dtype).max
    assert float(values.double().abs().amax(dim=1)[4]) == largest
    error = (back - x.double()).abs()
    allowed = rounding * x.double().abs() + 0.5 * spacing * scale.double()
    assert bool((error <= allowed * (1 + 1e-6)).all())


def test_a_product_of_quantised_matrices_is_near_that_of_the_originals():
    x, weight = randn(24, 96, dtype=torch.bfloat16), randn(40, 96, seed=1, dtype=torch.bfloat16)
    (a, scale_a), (b, scale_b) = quantise(x), quantise(weight)
    c = scaled_mm(a, b.t(), scale_a, scale_b.t())
    expected = x.double() @ weight.double().t()
    # each factor is off by some 2.6 % of itself, at random: the error of quantisation, not of the product
    assert 0.01 < float((c.double() - expected).norm() / expected.norm()) < 0.06
    assert_close(c, a, b.t(), scale_a, scale_b.t())


def test_nan_stays_in_its_row():
    a, b = randn(18, 32, dtype=E4M3), randn(16, 32, seed=1, dtype=E4M3).t()
    a[4, 7] = torch.nan
    c = scaled_mm(a, b, ONE, ONE)
    assert bool(c[4].isnan().all()) and int(c.isnan().sum()) == 16


def test_torch_compile_takes_them_whole():
    a, b, scale = randn(20, 32, dtype=E4M3), randn(24, 32, seed=1, dtype=E4M3).t(), torch.tensor(0.5)

    def twice(a, b, scale):
        return scaled_mm(a, b, scale, scale, out_dtype=torch.float16).float() * 2, int_mm(randint_a, randint_b) + 1

    randint_a, randint_b = randint(8, 16), randint(16, 8, seed=1)
    compiled, products = torch.compile(twice, fullgraph=True, backend="aot_eager")(a, b, scale)
    assert_close(compiled / 2, a, b, 0.5, 0.5)
    assert torch.equal(products, randint_a.int() @ randint_b.int() + 1)


def test_the_operator_is_registered_as_torch_asks():
    # int8: torch's check compares inputs before and after by arithmetic, which fp8 has none of
    args = (randint(16, 32), randint(32, 16, seed=1), ONE, ONE, None, torch.bfloat16, False)
    torch.library.opcheck(torch.ops.kernel_atlas.matmul_8bit.default, args)


A, B = randn(4, 16, dtype=E4M3), randn(16, 8, dtype=E4M3)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: scaled_mm(A.float(), B.float(), ONE, ONE), TypeError, "float32"),
        (lambda: scaled_mm(A, randint(16, 8), ONE, ONE), TypeError, "int8"),
        (lambda: int_mm(A, B), TypeError, "int_mm takes matrices of torch.int8"),
        (lambda: scaled_mm(A, B.t(), ONE, ONE), ValueError, r"\(4, 16\) times \(8, 16\)"),
        (lambda: scaled_mm(A[0], B, ONE, ONE), ValueError, r"\(16,\)"),
        (lambda: scaled_mm(A, B.to("meta"), ONE, ONE), ValueError, "one device"),
        (lambda: scaled_mm(A, B, ONE.double(), ONE), ValueError, "fp32 scales"),
        (lambda: scaled_mm(A, B, torch.ones(4, 1), ONE), ValueError, r"\(1, 8\)"),
        (lambda: scaled_mm(A, B, torch.ones(4), torch.ones(8)), ValueError, r"of \(4, 1\)"),
        (lambda: scaled_mm(A, B, ONE, ONE, torch.ones(4)), ValueError, "bias of 8"),
        (lambda: scaled_mm(A, B, ONE, ONE, out_dtype=E4M3), TypeError, "bf16, fp16 or fp32"),
        (lambda: scaled_mm(A, B, ONE.clone().requires_grad_(), ONE), NotImplementedError, "no gradient"),
        (lambda: quantise(randn(4)), ValueError, "a matrix"),
        (lambda: quantise(randn(4, 4), torch.float16), TypeError, "float16"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_with_the_reason(call, error, says):
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize("name", GPUS)
def test_every_default_is_a_point_of_its_space_that_fits(name):
    assert_defaults_fit(DECLARATION, GPUS[name])


def test_gpus_without_such_tensor_cores_say_so():
    fp8, int8 = (
        case("fp8e5m2", m=64, n=64, k=64, scales="tensor", fast=True),
        case("int8", m=64, n=64, k=64, scales="none"),
    )
    tiled = WORK.variant("tiled")
    assert tiled.unsupported(fp8, GPUS["a100"]) == "a100 has no fp8 tensor cores"
    assert tiled.unsupported(int8, GPUS["t4"]) == "t4 has no int8 tensor cores through tl.dot"
    assert not tiled.unsupported(int8, GPUS["a100"]) and not tiled.unsupported(fp8, GPUS["h100"])


def test_a_call_of_the_declaration_takes_products_without_scales_for_int_mm():
    a, b = randint(4, 8), randint(8, 4, seed=1)
    assert torch.equal(call(scaled_mm, a, b, None, None, None, False), int_mm(a, b))


COMPILE = """
import json, sys
from atlas.compilation.compiled import compile_config
from atlas.reading.config import load_gpus
from atlas.declaration import case
from atlas.host.gpus import gpu
from kernels.matmul_8bit import DECLARATION

work, found = DECLARATION.forward, []
large = dict(m=4096, n=4096, k=4096)
for name, variant, problem in (
    ("a100", "tiled", case("int8", scales="none", **large)),
    ("h200", "tiled", case("fp8e4m3", m=33, n=65, k=129, scales="row", fast=False)),
    ("h200", "specialized", case("int8", scales="none", **large)),
    ("h200", "specialized", case("fp8e4m3", scales="row", fast=False, **large)),
    ("h200", "alternating", case("fp8e4m3", scales="row", fast=True, **large)),
):
    on = gpu(name, load_gpus()[name])
    config = work.variant(variant).default(problem, on)
    compiled = compile_config(DECLARATION, "forward", variant, problem, config, on).to_json()
    found.append([name, variant, problem.to_json(), compiled])
json.dump(found, sys.stdout)
"""


def test_defaults_compile_to_tensor_cores_without_spills(printed_apart):
    found = printed_apart(COMPILE)
    assert len(found) == 5
    for name, variant, problem, compiled in found:
        assert compiled["status"] == "ok", (variant, problem, compiled["reason"])
        assert compiled["spill_bytes"] == 0, (variant, problem)
        assert compiled["matrix_instruction"] == ("wgmma" if name == "h200" else "mma"), (variant, problem)


def apart_from_clusters(problem, on):
    return next(v for v in WORK.variants if v.name != "clustered" and not v.unsupported(problem, on))


@pytest.mark.parametrize(
    ("m", "n", "k", "chosen"),
    [
        (32, 1152, 1600, "persistent"),  # half of a tile's rows would be empty, of a sum too short for parts
        (1024, 1024, 768, "persistent"),  # half of the SMs
        (1024, 1024, 1024, "descriptor"),  # 128 tiles of 64 x 128 run at a time
        (112, 6144, 5120, "descriptor"),
        (32, 4864, 3072, "persistent"),  # tiles of 64 x 64 for more than half of the SMs, of a sum soon done
        (16, 8192, 8192, "split_descriptor"),
        (4096, 4096, 4096, "specialized"),
        (512, 13824, 4096, "alternating"),  # 432 tiles: the fourth round's 36 are cut
        (1024, 13824, 2880, "alternating"),  # seven rounds of either: it hides their ends
    ],
)
def test_groups_multiply_where_their_tiles_reach_most_sms_and_in_better_rounds(m, n, k, chosen):
    problem = case("fp8e4m3", m=m, n=n, k=k, scales="row", fast=True)
    for on in ("h100", "h200"):
        assert apart_from_clusters(problem, GPUS[on]).name == chosen


@pytest.mark.parametrize(
    ("m", "n", "k", "fast", "stages"),
    [
        (254, 12288, 1280, True, 3),  # 192 tiles of 128 x 128, 384 of 64 x 128: three an SM
        (250, 8704, 3072, False, 3),
        (320, 6400, 1600, True, 4),  # 250: two an SM
        (254, 8448, 1600, True, None),  # one round of 132 of 128 x 128
        (510, 4608, 2560, True, 3),
        (254, 16384, 1280, True, None),  # 512 of 64 x 128
        (256, 9216, 4096, True, None),  # a long sum
        (16, 65536, 1024, True, None),  # few rows
    ],
)
def test_tiles_of_64_rows_are_one_round_where_those_of_128_are_a_round_and_a_bit(m, n, k, fast, stages):
    problem = case("fp8e4m3", m=m, n=n, k=k, scales="tensor", fast=fast)
    variant = DECLARATION.forward.preferred(problem, GPUS["h200"])
    default, tile = variant.default(problem, GPUS["h200"]), ("BLOCK_M", "BLOCK_N", "num_stages")
    small = (variant.name, *(default.get(name) for name in tile)) == ("descriptor", 64, 128, stages)
    assert small == (stages is not None)
    assert default in list(variant.configs(problem, GPUS["h200"]))


@pytest.mark.parametrize(
    ("m", "n", "k", "fast", "variant", "tile"),
    [
        (310, 1280, 5376, True, "descriptor", (64, 64, 256, 5)),  # 100 of 64 x 64
        (384, 1536, 4096, True, "descriptor", (64, 128, 256, 4)),  # 144 of 64 x 64, 72 of 64 x 128
        (128, 1024, 8192, True, "split_descriptor", (64, 128, 256, 4)),  # 16 of 64 x 128, in 8 parts
        (256, 2048, 2560, False, "descriptor", (64, 64, 256, 5)),
        (384, 1536, 4096, False, "split_descriptor", (64, 128, 128, 4)),  # 216 programs, two an SM
        (192, 5120, 5120, True, "descriptor", (64, 128, 256, 4)),  # 120 of 64 x 128, 80 of 128 x 128
        (64, 4096, 8192, True, "split_descriptor", (64, 64, 256, 5)),  # few rows
    ],
)
def test_few_tiles_of_fp8_are_small_ones_and_their_sums_cut_where_that_ends_sooner(m, n, k, fast, variant, tile):
    problem = case("fp8e4m3", m=m, n=n, k=k, scales="row", fast=fast)
    preferred = apart_from_clusters(problem, GPUS["h200"])
    default = preferred.default(problem, GPUS["h200"])
    assert preferred.name == variant
    assert tuple(default[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages")) == tile
    assert default in list(preferred.configs(problem, GPUS["h200"]))


@pytest.mark.parametrize(("m", "n", "k"), [(128, 7168, 2048), (488, 2048, 2880), (1600, 576, 2048)])
def test_few_tiles_of_int8_are_small_ones_too(m, n, k):
    """12.9, 13.8 and 11.5 us; 16.2, 17.2 and 15.7 by two parts of 128 x 128 (H200)."""
    problem = case("int8", m=m, n=n, k=k, scales="tensor", fast=True)
    variant = DECLARATION.forward.preferred(problem, GPUS["h200"])
    config = variant.default(problem, GPUS["h200"])
    assert (variant.name, config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]) == ("descriptor", 64, 128, 256)
    assert not variant.fits(config, problem, GPUS["h200"])


@pytest.mark.parametrize(
    ("dtype", "fast", "m", "n", "k", "tile"),
    [
        ("fp8e4m3", False, 256, 2048, 2560, (64, 64, 1)),
        ("fp8e4m3", False, 256, 1600, 4608, (128, 64, 2)),
        ("fp8e4m3", False, 500, 1024, 8192, (64, 128, 2)),
        ("fp8e5m2", True, 29, 4096, 2048, (32, 64, 2)),
        ("fp8e4m3", True, 16, 1024, 8192, (16, 64, 6)),
        ("int8", None, 128, 2048, 4096, (64, 64, 2)),
        ("int8", None, 1024, 9, 2048, (64, 16, 4)),
        ("fp8e4m3", False, 200, 2304, 4096, (128, 64, 1)),  # 72 tiles, too many for clusters of two
        ("fp8e4m3", False, 192, 2560, 1024, None),  # whole sums, of few steps
        ("fp8e4m3", True, 256, 2048, 2560, None),  # whole sums are fast
        ("fp8e4m3", True, 310, 1280, 5376, None),
        ("int8", None, 1024, 1024, 1024, None),
        ("int8", None, 64, 1024, 512, None),  # a short sum
        ("int8", None, 64, 1024, 2056, None),  # rows off 16 bytes
        ("fp8e4m3", True, 16, 8192, 8192, None),  # 67 MB
    ],
)
def test_few_tiles_go_to_clusters_that_run_at_once_where_these_end_sooner(dtype, fast, m, n, k, tile):
    problem = case(dtype, m=m, n=n, k=k, scales="row", **({} if fast is None else {"fast": fast}))
    variant, on = WORK.variant("clustered"), GPUS["h200"]
    assert (WORK.preferred(problem, on) is variant) == (tile is not None)
    assert variant.unsupported(problem, GPUS["a100"])
    if tile:
        default = variant.default(problem, on)
        assert tuple(default.values()) == tile
        assert default in list(variant.configs(problem, on))


def test_thin_products_on_hopper_have_one_round_and_sums_in_fp32_no_persistent_programs():
    for fast, chosen in ((True, "persistent"), (False, "descriptor")):
        problem = case("fp8e4m3", m=48, n=9728, k=2560, scales="row", fast=fast)
        variant = DECLARATION.forward.preferred(problem, GPUS["h200"])
        configs = list(variant.configs(problem, GPUS["h200"]))
        assert variant.name == chosen
        assert variant.default(problem, GPUS["h200"]) in configs
        assert {config["BLOCK_N"] for config in configs} == {128}  # 76 tiles; of 64 columns there are 152
