"""Arithmetic that kernels on rows share."""

import dataclasses

import pytest
from atlas.declaration import GPU, case
from atlas.declaration.rows import LEAST_TILE, rows_together, spread_obstacle, stream_default

H200 = GPU("h200", "cuda", 90, sms=132, shared_bytes=232448, memory_bytes=139 * 2**30, l2_bytes=50 * 2**20)
MI300 = dataclasses.replace(H200, name="mi300", backend="hip", arch="gfx942", shared_bytes=65536)


@pytest.mark.parametrize(("gpu", "threads_of_a_warp"), [(H200, 32), (MI300, 64)])
@pytest.mark.parametrize("n", [1000, 32000, 262144])
def test_a_streaming_default_is_a_block_that_can_launch(gpu, threads_of_a_warp, n):
    config = stream_default(2, (1024, 2048, 4096, 8192, 16384))(case("fp32", m=4096, n=n), gpu)
    assert config["num_warps"] * threads_of_a_warp <= 1024
    # Two 16-byte vectors a thread, as 32 threads a warp count them, unless the block is the least there is.
    assert config["BLOCK_N"] * 4 == config["num_warps"] * 32 * 32 or config["num_warps"] == 4


@pytest.mark.parametrize(("m", "n", "together"), [(2**20, 10, 64), (2**18, 64, 16), (2**16, 512, 2), (4096, 1024, 1)])
def test_many_short_rows_share_a_program_of_two_kilobytes(m, n, together):
    assert rows_together(case("bf16", m=m, n=n), H200, most_rows=512) == together


def test_rows_that_share_a_program_leave_enough_for_every_sm():
    problem = case("bf16", m=7063, n=61)
    rows = rows_together(problem, H200, most_rows=512)
    assert 8 * H200.sms <= problem["m"] / rows and rows * 64 * 2 < LEAST_TILE
    assert not spread_obstacle({"BLOCK_M": rows, "num_warps": 1}, problem, H200, most_rows=512)


def test_few_long_rows_need_more_than_a_warp():
    problem = case("bf16", m=4, n=4096)
    assert "more warps" in spread_obstacle({"BLOCK_M": 1, "num_warps": 1}, problem, H200, most_rows=8)
    assert not spread_obstacle({"BLOCK_M": 1, "num_warps": 4}, problem, H200, most_rows=8)
