"""The survey's instruments: they move what they say, at the pace that the hardware's datasheet allows."""

import pytest
import torch
from atlas.host.runtime import properties
from atlas.survey import bandwidth
from atlas.survey.ways import Way, best

pytestmark = pytest.mark.gpu

SIZE = 2**30
"""Bytes of a buffer: far beyond L2."""
ROOFS = {
    "copy": (bandwidth.copy_ways, 2),
    "read": (bandwidth.read_ways, 1),
    "write": (bandwidth.write_ways, 1),
    "elementwise": (bandwidth.elementwise_ways, 3),
}


@pytest.mark.parametrize("name", ROOFS)
def test_memory_s_pace_is_between_half_and_all_of_the_datasheet_s(name, clock, block, figure):
    ways, streams = ROOFS[name]
    published = block[1]["datasheet"]["bandwidth_gb_per_s"]

    def group():
        buffers = [torch.randn(SIZE // 4, device="cuda") for _ in range(streams)]
        return [Way(how, thunk, streams * SIZE) for how, thunk in ways(*buffers)]

    row = best(clock, name, "GB/s", [group])
    assert row["status"] == "ok", row
    share = row["value"] / published
    figure(f"survey: {name} {row['value']:.0f} GB/s, {100 * share:.0f} % of the datasheet ({row['how']})")
    assert 0.5 <= share <= 1.05


@pytest.mark.parametrize("name", ["copy", "write", "elementwise"])
def test_every_way_moves_what_it_says(name):
    ways, streams = ROOFS[name]
    buffers = [torch.randn(2**16, device="cuda") for _ in range(streams)]
    before = [x.clone() for x in buffers]
    for how, run in ways(*buffers):
        buffers[-1].fill_(7.0)
        run()
        if name == "copy":
            assert torch.equal(buffers[1], before[0]), how
        elif name == "elementwise":
            assert torch.equal(buffers[2], before[0] + before[1]), how
        else:
            assert buffers[0].unique().numel() == 1 and float(buffers[0][0]) != 7.0, how


def test_launching_takes_microseconds(clock, cuda, figure):
    rows = {row["name"]: row["value"] for row in bandwidth.launch_roofs(clock, cuda)}
    figure("survey: " + ", ".join(f"{name} {value:.2f} us" for name, value in rows.items()))
    assert 0.5 < rows["launch_latency"] < 50
    assert 0 < rows["event_floor"] < rows["empty_kernel"] + 0.5 < 20


def test_the_driver_s_figures_are_those_of_the_gpu_s_block(cuda, block):
    told, described = properties(cuda), block[1]
    assert told["sms"] == described["sms"]
    assert told["shared_bytes"] == described["shared_memory_kib"] * 1024
    assert told["memory_bytes"] / 2**30 == pytest.approx(described["memory_gib"], rel=0.1)
    assert told["l2_bytes"] / 2**20 == pytest.approx(described["l2_mib"], rel=0.05)
