"""Which compiled configs are pruned, and with what reason."""

import inside
from atlas.compilation.resources import Resources, obstacle


def test_a_config_that_spills_badly_is_pruned_with_the_amount(compiling):
    row = compiling(inside.dot, "a100", 64, 1, 32)  # 64 x 64 sums on 128 threads are 32 registers each
    assert row["status"] == "pruned"
    assert row["spill_bytes"] > 64
    assert f"{row['spill_bytes']} bytes of local memory" in row["reason"]


def test_the_default_config_is_kept_though_it_spills(compiling):
    row = compiling(inside.spilling_default)
    assert (row["status"], row["reason"]) == ("ok", "")
    assert row["spill_bytes"] > 64  # and the document says so


def test_a_config_that_asks_for_more_shared_memory_than_a_block_has_is_pruned(compiling):
    row = compiling(_little_shared_memory)
    assert row["status"] == "pruned"  # though it is the default: it cannot launch
    assert f"{row['shared_bytes']} bytes of shared memory" in row["reason"]
    assert "at most 1024" in row["reason"]


def _little_shared_memory():
    return inside.dot("h200", shared_bytes=1024)


def test_more_threads_than_a_block_holds_are_an_obstacle():
    gpu = inside.gpu_named("h200")
    assert "1056 threads" in obstacle("kernel", Resources(32, 0, 0, 1056), gpu)
    assert obstacle("kernel", Resources(32, 0, 0, 1024), gpu) == ""


def test_registers_for_more_than_one_multiprocessor_are_an_obstacle():
    gpu = inside.gpu_named("h200")
    # 1024 threads x 64 registers are all 65536 of an SM; 65 round up to 72 a thread.
    assert obstacle("kernel", Resources(64, 0, 0, 1024), gpu) == ""
    assert "65 registers" in obstacle("kernel", Resources(65, 0, 0, 1024), gpu)
