"""The clock on a real GPU: what it times is what the GPU took, cold, and without launching."""

import statistics
import time

import pytest
import torch
from atlas.survey import bandwidth
from atlas.timing.device import CudaDevice
from atlas.timing.samplers import Sampler
from atlas.timing.samples import quartiles

from .small_kernels import spin

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def out():
    return torch.zeros(1, dtype=torch.int64, device="cuda")


@pytest.fixture(scope="module")
def device(clock, cuda):
    return CudaDevice(cuda)


@pytest.mark.parametrize("microseconds", [20.0, 100.0, 1000.0])
def test_a_kernel_of_a_known_duration_is_timed_right(clock, out, figure, microseconds):
    thunk = spin(microseconds, out)
    floor = clock.floor_us()
    timing = clock.measure(thunk)
    took = int(out) / 1000
    assert timing.queued
    # %globaltimer goes on in steps of up to 1.024 us, and a launch has an end of its own.
    assert microseconds <= took <= microseconds + 3
    assert took - 1.5 <= timing.median_us <= took + floor + 3 + 0.01 * took
    figure(f"clock: {microseconds:g} us by %globaltimer read {timing.median_us:.2f} us (events alone {floor:.2f} us)")


def test_twice_the_work_takes_twice_the_time(clock, out):
    timings = clock.interleave({"one": spin(100.0, out), "two": spin(200.0, out)})
    assert 98 <= timings["two"].median_us - timings["one"].median_us <= 102


def test_samples_are_all_there_and_the_summary_is_theirs(clock, out):
    timing = clock.measure(spin(50.0, out), max_samples=60)
    assert 10 <= len(timing.samples_us) <= 60
    assert (timing.q1_us, timing.median_us, timing.q3_us) == quartiles(timing.samples_us)
    assert timing.q3_us - timing.q1_us < 0.05 * timing.median_us
    assert timing.sm_clock_mhz and timing.temperature_c and timing.power_w


def test_the_floor_is_far_below_a_kernel(clock):
    assert 0 < clock.floor_us() < 10


def test_launching_stays_out_of_the_figure(clock, out, figure):
    """A call that costs the host much more than the device."""

    def slow_to_launch():
        began = time.perf_counter()
        while time.perf_counter() - began < 200e-6:
            pass
        spin(10.0, out)()

    timing = clock.measure(slow_to_launch, max_samples=64)
    assert timing.queued and timing.median_us < 25
    figure(f"clock: 10 us of work behind 200 us of launching read {timing.median_us:.2f} us")


def test_a_call_that_waits_for_the_device_is_seen_to(clock, out):
    def waiting():
        spin(10.0, out)()
        torch.cuda.synchronize()

    assert not clock.screen(waiting, samples=5).queued


def test_a_batch_that_the_device_caught_up_with_is_thrown_away_and_repeated_behind_a_longer_wait(device, out):
    """The host is slower to queue a sample than the first guess has it."""
    blocks = []

    class Watched:
        def __getattr__(self, name):
            return getattr(device, name)

        def block(self, microseconds):
            blocks.append(microseconds)
            device.block(microseconds)

    def slow():
        time.sleep(0.001)
        spin(10.0, out)()

    slow()
    batch = Sampler(Watched()).take([slow] * 8)
    assert batch.queued and len(blocks) > 1 and blocks[-1] > blocks[0]
    assert statistics.median(batch.samples_us) < 25


def test_one_exposed_sample_among_many_exposes_its_batch(device, out):
    """Only one call of the batch, neither the first nor the last; those behind it are queued ahead again."""
    calls = [spin(10.0, out)] * 8
    calls[0]()
    calls[3] = lambda: (torch.cuda.synchronize(), device.block(20_000.0))
    assert not Sampler(device).take(calls).queued
    assert Sampler(device).take([calls[0]] * 8).queued


def test_the_blocking_kernel_holds_the_device_as_long_as_it_is_told(device):
    for microseconds in (200.0, 2000.0):
        start, end = device.event(), device.event()
        start.record()
        device.block(microseconds)
        end.record()
        device.synchronize()
        held = 1000 * start.elapsed_time(end)
        assert 0.98 * microseconds < held < 1.4 * microseconds  # cycles of the highest clock, run at today's


def test_the_flush_leaves_nothing_of_an_input_in_l2(device, clock, figure):
    """A read of a quarter of L2: after a flush at the pace of memory, and without one at that of L2."""
    size = torch.cuda.get_device_properties(0).L2_cache_size // 4 // 2**20 * 2**20
    x = torch.randn(size // 4, device="cuda")
    read = min(
        (run for how, run in bandwidth.read_ways(x) if "Triton" in how),
        key=lambda run: clock.screen(run).median_us,
    )

    def timed(before):
        found = []
        for _ in range(30):
            start, end = device.event(), device.event()
            device.block(200.0)
            before()
            start.record()
            read()
            end.record()
            device.synchronize()
            found.append(1000 * start.elapsed_time(end))
        return statistics.median(found)

    def both():
        device.flush()
        device.flush()

    warm, cold, twice = timed(read), timed(device.flush), timed(both)
    figure(f"L2: {size / 2**20:.0f} MiB read in {warm:.1f} us warm, {cold:.1f} us after the flush")
    assert cold > 1.25 * warm
    assert twice == pytest.approx(cold, rel=0.15)  # a second flush finds nothing left to evict
    assert clock.measure(read).median_us == pytest.approx(cold, rel=0.25)


def test_the_host_s_time_of_a_call_leaves_out_what_the_device_does(clock, out):
    brief, long = (clock.call_us(spin(microseconds, out)) for microseconds in (1.0, 100.0))
    assert 2 < brief < 200
    assert long < brief + 50
