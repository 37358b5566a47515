"""Which roof binds, what fraction a figure is of it, and which figures cannot be."""

import dataclasses

import pytest
from atlas.benchmarking.roofs import Cost, beyond, bound, cost
from atlas.declaration import case
from atlas.results.surveyed import Survey

H200 = Survey(
    {"copy": 4271.0, "read": 4426.0, "write": 4681.0, "elementwise": 4368.0, "matmul_bf16": 800.0, "matmul_tf32": 400.0,
     "matmul_fp32": 50.0},
    l2_bytes=60e6,
)  # fmt: skip


def of(read, written, flops=0.0):
    return Cost(read + written, written, flops)


@pytest.mark.parametrize(
    ("read", "written", "roof"),
    [
        (1e9, 0, "read"),  # a sum
        (1e9, 1e9, "copy"),  # softmax
        (2e9, 1e9, "elementwise"),  # addition
        (0, 1e9, "write"),  # a fill
        (1e9, 1e6, "read"),  # a product with one row: hardly anything written
    ],
)
def test_memory_roof_is_the_one_with_the_nearest_mix_of_reads_and_writes(read, written, roof):
    assert bound(of(read, written), "fp32", H200).roof == roof


def test_the_longer_of_memory_and_arithmetic_binds():
    square = of(2 * 4096 * 4096 * 2, 4096 * 4096 * 2, 2 * 4096**3)
    assert bound(square, "bf16", H200).roof == "matmul_bf16"
    assert bound(square, "bf16", H200).roof_us == pytest.approx(2 * 4096**3 / 800e6)
    one_row = of(2 * 8192 * 8192, 2 * 8192, 2 * 8192 * 8192)
    assert bound(one_row, "bf16", H200).roof == "read"


def test_no_figure_is_faster_than_the_longer_of_memory_and_arithmetic_permits():
    square = bound(of(2 * 4096 * 4096 * 2, 4096 * 4096 * 2, 2 * 4096**3), "bf16", H200)
    assert square.least_us == square.roof_us == pytest.approx(2 * 4096**3 / 800e6)
    assert "matmul_bf16" in beyond(square.roof_us / 1.02, square), "memory alone would permit a quarter of it"
    one_row = bound(of(2 * 8192 * 8192, 2 * 8192, 2 * 8192 * 8192), "bf16", H200)
    assert one_row.least_us == pytest.approx(2 * 8192 * 8192 / 4.426e6, rel=1e-3)


def test_tf32_and_ieee_products_of_fp32_have_different_roofs():
    work = of(3e6, 1e6, 1e12)
    assert bound(work, "tf32", H200).roof == "matmul_tf32"
    only_fma = dataclasses.replace(H200, roofs={"copy": 4271.0, "matmul_fp32": 50.0})
    assert bound(work, "fp32", only_fma).roof == "matmul_fp32"


def test_fp32_may_be_multiplied_by_tensor_cores_in_six_products_where_that_is_faster():
    work = of(3e6, 1e6, 1e12)
    limit = bound(work, "fp32", H200)
    assert (limit.roof, limit.roof_us) == ("matmul_bf16x6", pytest.approx(6 * 1e12 / 800e6))
    assert beyond(limit.roof_us / 1.02, limit)
    slow = dataclasses.replace(H200, roofs=dict(H200.roofs) | {"matmul_bf16": 120.0})
    assert bound(work, "fp32", slow).roof == "matmul_fp32"


def test_dtype_without_a_matmul_roof_is_bound_by_memory():
    assert bound(of(1e6, 1e6, 1e15), "fp8e4m3", H200).roof == "copy"


def test_no_roofs_or_no_work_has_no_bound():
    assert bound(of(1e9, 1e9), "fp32", Survey({})) is None
    assert bound(of(0, 0), "fp32", H200) is None


def test_one_percent_above_the_roof_is_let_pass_and_more_is_not():
    limit = bound(of(4e9, 0), "fp32", H200)
    assert not beyond(limit.roof_us / 1.009, limit)
    assert "faster than the roof read" in beyond(limit.roof_us / 1.02, limit)


def test_written_bytes_that_l2_may_still_hold_do_not_make_a_figure_suspect():
    small = bound(of(40e6, 40e6), "fp32", H200)  # all of its output fits into L2
    in_memory = 40e6 / 4.426e6
    assert not beyond(in_memory, small)
    assert beyond(in_memory / 2, small)
    large = bound(of(4e9, 4e9), "fp32", H200)
    assert not beyond(large.roof_us / 1.009, large)
    assert beyond(large.roof_us / 1.03, large)


def test_a_mix_between_two_roofs_is_gated_by_a_bandwidth_between_theirs():
    survey = Survey({"read": 4400.0, "elementwise": 4000.0})
    mixed = of(5e9, 1e9)  # a sixth is written: half-way between
    limit = bound(mixed, "fp32", survey)
    assert limit.least_us == pytest.approx(6e9 / 4.2e6)


def test_a_fill_that_fits_into_l2_need_not_reach_memory_at_all():
    assert not beyond(0.1, bound(of(0, 1e6), "fp32", H200))


def test_nothing_is_suspect_without_a_bound():
    assert beyond(1e-9, None) == ""


def test_roofs_without_a_value_are_left_out():
    document = {"roofs": [{"name": "copy", "value": 1.0}, {"name": "matmul_fp8", "value": None}], "properties": {}}
    assert Survey.of(document) == Survey({"copy": 1.0}, 0.0)


def test_cost_counts_a_pass_s_outputs_as_written():
    from atlas import catalog

    declaration = catalog.load("vector_add", interpret=True)
    spent = cost(declaration.forward, next(c for c in declaration.edge_cases if c["n"] == 4096 and c.dtype == "fp32"))
    assert (spent.bytes, spent.written, spent.flops) == (3 * 4 * 4096, 4 * 4096, 4096)


_ROPE = {"batch": 2, "seq": 16, "heads": 4, "kv_heads": 4, "head_dim": 32, "interleaved": False, "heads_first": False}


@pytest.mark.parametrize(
    ("kernel", "direction", "dtype", "sizes", "written"),
    [
        ("rope", "backward", "fp32", _ROPE, ["q", "k"]),  # named so for dq and dk
        ("cross_entropy", "forward", "fp32", {"m": 8, "n": 64, "gradient": True}, ["dx"]),  # an output called "saved"
        ("rms_norm", "forward", "fp32", {"m": 8, "n": 64, "residual": True}, ["out", "sum", "rstd"]),  # "sum or rstd"
        ("matmul_8bit", "forward", "int8", {"m": 32, "n": 16, "k": 64, "scales": "tensor", "fast": True}, ["c"]),
    ],
)
def test_what_a_pass_writes_counts_under_another_name_too(kernel, direction, dtype, sizes, written):
    from atlas import catalog

    work, problem = catalog.load(kernel, interpret=True).passes[direction], case(dtype, **sizes)
    assert cost(work, problem).written == sum(work.bytes(problem)[name] for name in written)


def test_a_term_of_two_tensors_is_half_written():
    from atlas import catalog

    work = dataclasses.replace(
        catalog.load("vector_add", interpret=True).forward,
        outputs=("dx", "dy"),
        bytes=lambda problem: {"x, dx": 20, "y, dy": 8, "y": 10},
    )
    assert cost(work, case("fp32", n=1)).written == 14
