"""Occupancy by each of the limits, against values worked out by hand from NVIDIA's rules."""

import inside
import pytest
from atlas.compilation.resources import Resources, occupancy


@pytest.mark.parametrize(
    ("gpu", "registers", "shared", "threads", "resident_warps", "limit"),
    [
        ("h200", 32, 0, 256, 64, "nothing: eight blocks of eight warps"),
        ("h200", 168, 0, 128, 12, "registers: 5376 a warp, three in a partition of 16384"),
        ("h200", 255, 0, 256, 8, "registers: 8192 a warp, two in a partition"),
        ("h200", 32, 100 * 1024, 128, 8, "shared memory: two blocks of 101 KiB in 228"),
        ("h200", 32, 114 * 1024, 128, 4, "shared memory: 1 KiB a block for the system leaves room for one of 114"),
        ("h200", 16, 0, 32, 32, "blocks: 32 of one warp"),
        ("t4", 32, 0, 256, 32, "nothing: 32 warps are all of a T4's SM"),
        ("t4", 32, 32 * 1024, 128, 8, "shared memory: two blocks in 64 KiB, nothing taken by the system"),
        ("t4", 196, 0, 128, 8, "registers: 6400 a warp, two in a partition"),
    ],
)
def test_occupancy_is_what_the_tightest_limit_leaves(gpu, registers, shared, threads, resident_warps, limit):
    gpu = inside.gpu_named(gpu)
    assert occupancy(Resources(registers, 0, shared, threads), gpu) == resident_warps / gpu.warps_per_sm, limit


def test_cdna3_shares_512_registers_among_the_waves_of_a_simd():
    gpu = inside.gpu_named("h200", backend="hip", arch="gfx942")
    assert occupancy(Resources(64, 0, 0, 256), gpu) == 1  # eight waves of 64 registers
    assert occupancy(Resources(65, 0, 0, 256), gpu) == 7 / 8  # 72 registers with the unit of 8
    assert occupancy(Resources(32, 0, 32 * 1024, 256), gpu) == 8 / 32  # two blocks of 32 KiB in 64


def test_occupancy_is_not_claimed_where_the_architecture_is_unknown():
    gpu = inside.gpu_named("h200", backend="hip", arch="gfx1100")
    assert occupancy(Resources(64, 0, 0, 256), gpu) is None
