"""Launching must not be in the samples, whatever the host's pace."""

import pytest
from atlas.timing.samplers import Sampler

from .fakes import SimulatedDevice


@pytest.mark.parametrize(
    ("device_us", "host_us"),
    [
        (10.0, 5.0),  # a kernel longer than its launch
        (3.0, 40.0),  # the case the wait is for: launching takes far longer than the kernel
        (5000.0, 20.0),  # long kernels: the queue is never empty
        (2.0, 900.0),  # a slow host, as with autograd: the first guess of the wait is too short
    ],
)
def test_samples_hold_the_device_time_alone(device_us, host_us):
    device = SimulatedDevice()
    batch = Sampler(device).take([device.kernel(device_us, host_us)] * 20)
    assert batch.queued
    assert batch.samples_us == pytest.approx([device_us] * 20)


def test_without_a_wait_the_same_kernel_would_show_its_launch():
    device = SimulatedDevice()
    start, end = device.event(), device.event()
    start.record()
    device.kernel(3.0, 40.0)()
    end.record()
    assert 1000 * start.elapsed_time(end) > 40


def test_a_drained_queue_is_noticed_and_the_batch_repeated_behind_a_longer_wait():
    device = SimulatedDevice()
    Sampler(device).take([device.kernel(2.0, 900.0)] * 10)
    assert len(device.blocks) > 1
    assert device.blocks == sorted(device.blocks)
    assert device.blocks[-1] > 10 * 900.0


def test_one_sample_that_the_device_waited_for_spoils_its_batch_wherever_it_stands():
    # Behind the exposed one lies enough work that neither the last sample nor the trailing edge shows anything.
    device = SimulatedDevice()
    slow, long = device.kernel(2.0, host_us=5000.0), device.kernel(10_000.0)
    batch = Sampler(device).take([long, slow, slow, slow, slow, long, long])
    assert len(device.blocks) > 1
    assert batch.queued
    assert batch.samples_us == pytest.approx([10_000.0, 2.0, 2.0, 2.0, 2.0, 10_000.0, 10_000.0])


def test_a_first_sample_that_the_device_waited_for_spoils_its_batch():
    device = SimulatedDevice()
    batch = Sampler(device).take([device.kernel(2.0, host_us=5000.0), *[device.kernel(10_000.0)] * 5])
    assert batch.samples_us == pytest.approx([2.0] + [10_000.0] * 5)
    assert device.blocks[-1] > 5000.0


def test_the_length_of_wait_that_served_is_remembered_until_told_to_forget():
    device = SimulatedDevice()
    sampler = Sampler(device)
    slow = device.kernel(2.0, 900.0)
    sampler.take([slow] * 10)
    tries = len(device.blocks)
    sampler.take([slow] * 10)
    assert len(device.blocks) == tries + 1
    sampler.forget()
    sampler.take([device.kernel(2.0)] * 10)
    assert device.blocks[-1] == device.blocks[0]


def test_a_call_that_waits_for_the_device_is_said_to_be_not_queued_and_ends_all_the_same():
    device = SimulatedDevice()

    def waits():
        device.kernel(10.0)()
        device.synchronize()

    batch = Sampler(device).take([waits] * 5)
    assert not batch.queued
    assert len(batch.samples_us) == 5


def test_a_call_that_keeps_the_host_longer_than_the_longest_wait_is_said_to_be_not_queued():
    device = SimulatedDevice()
    batch = Sampler(device).take([device.kernel(2.0, host_us=50_000.0)] * 10)  # half a second to queue
    assert device.blocks[-1] == 200_000.0, "0.2 s at most"
    assert not batch.queued


def test_a_full_launch_queue_holds_the_host_up_but_does_not_spoil_the_samples():
    device = SimulatedDevice(queue_limit=50)
    batch = Sampler(device).take([device.kernel(100.0, 5.0)] * 64)
    assert batch.queued
    assert batch.samples_us == pytest.approx([100.0] * 64)


def test_every_sample_is_preceded_by_a_flush():
    device = SimulatedDevice()
    Sampler(device).take([device.kernel(100.0)] * 7)
    assert device.flushes == (7 + 2 * 8) * len(device.blocks)  # and eight samples of nothing on either side


def test_samples_come_in_the_order_of_the_calls():
    device = SimulatedDevice()
    batch = Sampler(device).take([device.kernel(float(us)) for us in (30, 10, 20)])
    assert batch.samples_us == pytest.approx([30, 10, 20])


def test_what_a_call_raises_passes_through():
    def fails():
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        Sampler(SimulatedDevice()).take([fails])


def test_the_board_is_asked_while_the_device_works():
    device = SimulatedDevice()
    seen = []
    Sampler(device).take([device.kernel(1000.0)], lambda: seen.append(device.finished[-1] > device.host))
    assert all(seen)


def test_the_board_is_asked_only_once_the_device_has_come_to_the_samples():
    device = SimulatedDevice()
    samples_begin = []

    def work():
        samples_begin.append(device.finished[-1])
        device.kernel(1000.0)()

    asked = []
    Sampler(device).take([work] * 3, lambda: asked.append(device.host))
    assert asked[0] >= samples_begin[0], "before that the device only waits, and its clock says nothing of the work"


def test_the_board_is_asked_again_while_long_work_runs():
    device = SimulatedDevice()
    asked = []
    Sampler(device).take([device.kernel(30_000.0)] * 5, lambda: asked.append(device.host))
    assert 3 <= len(asked) <= 8  # 150 ms of work, every 20 ms
    assert asked[-1] <= device.finished[-1]


def test_samples_at_the_ends_of_the_queue_are_not_used():
    device = SimulatedDevice()
    recorded = []
    make = device.event

    def event():
        made = make()
        plain = made.record
        made.record = lambda: (recorded.append(made), plain())
        return made

    device.event = event
    timed = device.kernel(100.0)
    calls = []
    Sampler(device).take([lambda: (calls.append(len(recorded)), timed())] * 4)
    assert calls[0] >= 2 * 5 + 1, "at least five samples of nothing lie before"
    assert len(recorded) - calls[-1] >= 2 * 5, "and after"


def test_a_host_that_needs_less_than_guessed_is_waited_for_less():
    device = SimulatedDevice(launch_us=2.0)
    sampler = Sampler(device)
    for _ in range(3):
        assert sampler.take([device.kernel(50.0)] * 60).queued
    assert device.blocks[-1] < device.blocks[0]
    assert device.blocks[-1] == device.blocks[-2], "it settles"
