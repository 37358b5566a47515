"""Every kernel's default configs for three architectures, on a host without a GPU."""

import inside
import pytest
from atlas import catalog
from atlas.compilation.resources import SPILL_LIMIT_BYTES

# (GPU, a dtype its ordinary users have, what a dot of it becomes): sm_75 has no native bf16.
TARGETS = {"t4": ("fp16", {"fma"}), "a100": ("bf16", {"mma"}), "h200": ("bf16", {"wgmma"})}

# Their products of few rows are too thin for Hopper's wgmma, which multiplies 64 at a time.
THIN = {"attention_decode", "matmul_w4a16", "matmul_w8a16"}
THIN_VARIANTS = {"split_descriptor", "staggered", "odd_rows"}

# What passes the limit, in bytes: the gradients of 256 wide heads are 255 registers, and the GPU has `gluon` for them.
SPILLS = {("attention", "h200", "descriptor"): 392}

# These need tensor cores of int8 or fp8, which the GPU has not.
NOWHERE = {("matmul_8bit", "t4"), ("attention_fp8", "t4"), ("attention_fp8", "a100")}


def _pairs():
    """All kernels for Hopper, and for the other two by turns; the other turns are slow.

    Of the packed weights of 8 bits, whose sources are those of 4, all are.
    """
    for number, kernel in enumerate(catalog.names()):
        for gpu in TARGETS:
            often = kernel != "matmul_w8a16" and gpu in ("h200", ("t4", "a100")[number % 2])
            yield pytest.param(kernel, gpu, marks=() if often else pytest.mark.slow)


@pytest.mark.parametrize(("kernel", "gpu"), list(_pairs()))
def test_default_configs_compile_and_can_launch_without_spilling_much(compiling, kernel, gpu):
    dtype, becomes = TARGETS[gpu]
    rows = compiling(inside.defaults_of, kernel, gpu, dtype)
    assert rows or (kernel, gpu) in NOWHERE, "no variant supports any case of this dtype"
    for variant, row in rows:
        assert (row["status"], row["reason"]) == ("ok", ""), variant
        assert row["spill_bytes"] <= SPILLS.get((kernel, gpu, variant), SPILL_LIMIT_BYTES), variant
        thin = {"mma"} if gpu == "h200" and (kernel in THIN or variant in THIN_VARIANTS) else set()
        assert row["matrix_instruction"] in becomes | thin | {"none"}, variant
        assert 0 < row["occupancy"] <= 1, variant


@pytest.mark.parametrize(
    ("gpu", "instruction"),
    [("t4", "fma"), ("a100", "mma"), ("h200", "wgmma")],  # Triton gives sm_75 no tensor cores since 3.4
)
def test_a_dot_shows_what_the_architecture_makes_of_it(compiling, gpu, instruction):
    row = compiling(inside.dot, gpu)
    assert row["matrix_instruction"] == instruction
    assert row["widest_access_bits"] == 128  # rows of 64 fp16, contiguous and aligned


def test_a_dot_compiles_for_blackwell_and_cdna3_as_well(compiling):
    # The gpu blocks at hand are CUDA's; the architecture alone decides what is compiled.
    blackwell = compiling(_on, "h200", {"arch": 100}, 128)
    assert blackwell["matrix_instruction"] in ("tcgen05", "mma")
    amd = compiling(_on, "h200", {"backend": "hip", "arch": "gfx942", "shared_bytes": 65536}, 64)
    assert amd["matrix_instruction"] == "mma"
    assert amd["threads"] == 4 * 64  # waves of 64
    assert amd["registers"] > 0
    assert 0 < amd["occupancy"] <= 1


def _on(gpu, changes, block):
    return inside.dot(gpu, block=block, stages=1, **changes)


def test_a_kernel_without_a_dot_has_no_matrix_instruction(compiling):
    rows = compiling(inside.defaults_of, "vector_add", "h200", "fp32")
    assert [row["matrix_instruction"] for _, row in rows] == ["none"]
    assert [row["widest_access_bits"] for _, row in rows] == [128]
