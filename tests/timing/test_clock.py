"""How many samples are taken, in which order, and what is done about a throttled board."""

import itertools
import random

import pytest
from atlas.timing import PROTOCOL, Clock
from atlas.timing.device import Reading, summary_of
from atlas.timing.samplers import Batch, Sampler

from .fakes import GivenTimes, SaidBoard, SimulatedDevice, Sleeper


def steady(microseconds):
    return lambda: microseconds


def noisy(microseconds, spread, seed=3):
    generator = random.Random(seed)
    return lambda: abs(generator.gauss(microseconds, spread * microseconds))


def clock(board=None, pause=lambda seconds: None):
    return Clock.of_parts(GivenTimes(), board or SaidBoard(), pause)


def test_steady_work_stops_once_the_wanted_seconds_are_sampled():
    timing = clock().measure(steady(10_000.0), min_seconds=0.2)
    assert 20 <= len(timing.samples_us) <= 21  # 0.2 s of 10 ms


def test_long_work_gets_the_least_number_of_samples_and_no_more():
    assert len(clock().measure(steady(1e6), min_seconds=0.2, min_samples=10).samples_us) == 10


def test_short_work_stops_at_the_cap_of_samples():
    assert len(clock().measure(steady(5.0), max_samples=200).samples_us) == 200


def test_unsettled_work_is_sampled_on_up_to_five_times_the_seconds():
    noise = clock().measure(noisy(10_000.0, 0.3), min_seconds=0.1, max_samples=10_000)
    calm = clock().measure(noisy(10_000.0, 0.001), min_seconds=0.1, max_samples=10_000)
    assert len(calm.samples_us) <= 12
    assert 50 <= len(noise.samples_us) <= 65


def test_all_samples_are_kept_outliers_too():
    times = itertools.chain([0.0], [100.0] * 5, [9000.0], itertools.repeat(100.0))  # the first call is not timed
    timing = clock().measure(lambda: next(times), max_samples=50)
    assert 9000.0 in timing.samples_us
    assert timing.median_us == 100.0


def test_first_call_of_each_thunk_is_not_timed():
    times = itertools.chain([1e6], itertools.repeat(50.0))
    assert max(clock().measure(lambda: next(times), max_samples=20).samples_us) == 50.0


def test_interleaving_takes_one_sample_of_each_in_every_round():
    sampler = GivenTimes()
    one, other = steady(100.0), steady(200.0)
    Clock.of_parts(sampler, SaidBoard()).interleave({"a": one, "b": other}, min_seconds=0.0, max_samples=12)
    rounds = [sampler.order[i : i + 2] for i in range(0, len(sampler.order), 2)]
    assert all({one, other} == set(taken) for taken in rounds)


def test_drift_hits_all_alike_when_interleaved():
    ticks = itertools.count()

    def drifting():  # the whole device slows down by a percent with every sample, whoever runs
        return 100.0 * 1.01 ** next(ticks)

    timings = clock().interleave({"a": drifting, "b": drifting}, min_seconds=0.0, min_samples=40, max_samples=40)
    assert timings["a"].median_us == pytest.approx(timings["b"].median_us, rel=0.011)


def test_every_provider_meets_the_rule_before_the_rounds_end():
    timings = clock().interleave({"short": steady(1000.0), "long": steady(50_000.0)}, min_seconds=0.1)
    assert sum(timings["short"].samples_us) / 1e6 >= 0.1
    assert len(timings["short"].samples_us) == len(timings["long"].samples_us)


def test_batches_stay_within_what_a_launch_queue_holds():
    sampler = GivenTimes()
    Clock.of_parts(sampler, SaidBoard()).interleave({str(i): steady(5.0) for i in range(6)})
    assert max(sampler.batches) <= 64


def test_results_carry_the_state_of_the_board():
    board = SaidBoard(Reading(1980.0, 40.0, 300.0), Reading(1950.0, 45.0, 500.0))
    timing = clock(board).measure(steady(5.0), max_samples=130)
    assert 1950.0 <= timing.sm_clock_mhz <= 1980.0
    assert (timing.temperature_c, timing.power_w, timing.throttled) == (45.0, 500.0, False)


def test_a_throttled_measurement_is_repeated_once_after_a_pause():
    pauses = []
    board = SaidBoard(Reading(throttled=("power cap",)), Reading())
    timing = clock(board, pauses.append).measure(steady(1e5))
    assert len(pauses) == 1
    assert not timing.throttled
    assert timing.throttled_by == ()


def test_what_is_compared_with_one_another_alone_is_not_repeated_and_is_flagged():
    """Products hold a board at its power cap before a pause and after it."""
    pauses = []
    board = SaidBoard(Reading(throttled=("power cap",)), Reading())
    timings = clock(board, pauses.append).interleave({"a": steady(1e5), "b": steady(2e5)}, again=False)
    assert pauses == [] and all(timing.throttled for timing in timings.values())
    assert (timings["a"].median_us, timings["b"].median_us) == (1e5, 2e5)


def test_a_measurement_throttled_twice_stands_and_is_flagged():
    pauses = []
    timing = clock(SaidBoard(Reading(throttled=("power cap",))), pauses.append).measure(steady(1e5))
    assert len(pauses) == 1
    assert timing.throttled
    assert timing.throttled_by == ("power cap",)
    assert timing.median_us == 1e5


def test_every_reason_of_every_reading_counts_once_in_the_order_it_came_up():
    cap, heat = "power cap", "thermal slowdown by the hardware"
    readings = [Reading(throttled=(cap,)), Reading(throttled=(heat, cap)), Reading()]
    assert summary_of(readings).throttled == (cap, heat), "the last reading alone would say that nothing was amiss"


def test_a_board_that_recovers_before_the_end_has_throttled_all_the_same():
    pauses = []
    board = SaidBoard(Reading(throttled=("power cap",)), *[Reading()] * 3, Reading(throttled=("power cap",)), Reading())
    timing = clock(board, pauses.append).measure(steady(5.0), max_samples=200)  # four batches
    assert pauses == [1.0], "a second, as docs/measuring.md says"
    assert timing.throttled_by == ("power cap",), "the second measurement stands"


def test_readings_are_summed_up_as_median_clock_and_highest_heat():
    readings = [Reading(1000.0, 50.0, None), Reading(2000.0, 60.0, 100.0), Reading(1900.0, 55.0, 90.0, ("power cap",))]
    assert summary_of(readings) == Reading(1900.0, 60.0, 100.0, ("power cap",))


def test_a_screen_takes_exactly_the_samples_asked_for_and_leaves_the_board_alone():
    board = SaidBoard()
    timing = clock(board).screen(steady(7.0), samples=5)
    assert timing.samples_us == (7.0,) * 5
    assert board.asked == 0


def test_a_screen_beyond_the_limit_ends_with_the_first_sample():
    times = itertools.chain([1e6], [300.0], itertools.repeat(100.0))  # the first call is not timed
    sampler = GivenTimes()
    timing = Clock.of_parts(sampler, SaidBoard()).screen(lambda: next(times), samples=15, limit_us=299.0)
    assert timing.samples_us == (300.0,)
    assert sampler.batches == [1]


def test_a_screen_at_the_limit_goes_on_and_keeps_the_first_sample():
    times = itertools.chain([1e6], [300.0], itertools.repeat(100.0))
    timing = clock().screen(lambda: next(times), samples=4, limit_us=300.0)
    assert timing.samples_us == (300.0, 100.0, 100.0, 100.0)
    assert timing.median_us == 100.0


@pytest.mark.parametrize(
    ("seconds", "samples"),
    [
        (0.05, 5),  # five samples of 10 ms fit exactly
        (0.049, 4),
        (0.025, 2),
        (0.001, 1),  # never less than the first
    ],
)
def test_a_screen_of_slow_work_takes_as_many_samples_as_fit_into_its_seconds(seconds, samples):
    timing = clock().screen(steady(10_000.0), samples=15, most_seconds=seconds)
    assert len(timing.samples_us) == samples


def test_a_screen_of_many_samples_stays_within_what_a_launch_queue_holds():
    sampler = GivenTimes()
    assert len(Clock.of_parts(sampler, SaidBoard()).screen(steady(5.0), samples=200).samples_us) == 200
    assert max(sampler.batches) <= 64


def test_a_screen_of_what_takes_no_time_ends():
    assert clock().screen(steady(0.0), samples=5, most_seconds=0.05).median_us == 0.0


def test_a_screen_says_that_launching_could_not_be_kept_out():
    assert not Clock.of_parts(GivenTimes(queued=False), SaidBoard()).screen(steady(5.0)).queued


class OneUnqueued(GivenTimes):
    """A sampler of which launching could not be kept out of the ``which``-th batch."""

    def __init__(self, which):
        super().__init__()
        self.which = which

    def take(self, calls, meanwhile=None):
        batch = super().take(calls, meanwhile)
        return Batch(batch.samples_us, queued=len(self.batches) != self.which)


@pytest.mark.parametrize("which", [1, 2, 4])  # of 200 samples: the first batch, one in the middle, the last
@pytest.mark.parametrize("way", ["screen", "measure"])
def test_one_batch_with_launching_in_it_is_said_of_the_whole_figure(way, which):
    timer = Clock.of_parts(OneUnqueued(which), SaidBoard())
    if way == "screen":
        assert not timer.screen(steady(5.0), samples=200).queued
    else:
        assert not timer.measure(steady(5.0), min_samples=200, max_samples=200).queued


def test_every_measurement_begins_with_the_first_guess_of_the_wait():
    device = SimulatedDevice()
    timer = Clock.of_parts(Sampler(device), SaidBoard())
    timer.screen(device.kernel(2.0, host_us=900.0), samples=20)
    waited = len(device.blocks)
    timer.screen(device.kernel(50.0), samples=20)
    assert device.blocks[waited] == device.blocks[0] < max(device.blocks[:waited])


def test_a_device_that_rests_while_the_first_call_compiles_is_roused_after_it(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("atlas.timing.clock.time.monotonic", lambda: now[0])
    device = Sleeper()
    timer = Clock.of_parts(GivenTimes(), SaidBoard(), device=device)
    timer.screen(steady(5.0))
    device.notes.clear()

    def compiles_first():
        now[0] += 30.0 if "call" not in device.notes else 0.0
        device.notes.append("call")
        return 5.0

    timer.screen(compiles_first, samples=2)
    assert device.notes == ["soak", "call", "warm again", "call", "call"]


def test_a_device_that_rested_is_roused_before_it_is_sampled_and_one_at_work_is_not(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("atlas.timing.clock.time.monotonic", lambda: now[0])
    device = Sleeper()
    timer = Clock.of_parts(GivenTimes(), SaidBoard(), device=device)
    timer.screen(steady(5.0))
    timer.screen(steady(5.0))
    assert device.notes.count("warm again") == 1
    now[0] += 30.0  # somebody compiled
    timer.measure(steady(5.0))
    assert device.notes.count("warm again") == 2


def test_the_pause_after_throttling_counts_as_rest(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("atlas.timing.clock.time.monotonic", lambda: now[0])
    device = Sleeper()
    board = SaidBoard(Reading(throttled=("power cap",)))

    def pause(seconds):
        now[0] += seconds

    Clock.of_parts(GivenTimes(), board, pause, device).measure(steady(1e5))
    assert device.notes.count("warm again") == 2


def test_nothing_to_interleave_is_nothing():
    assert clock().interleave({}) == {}


def test_host_time_of_a_call_leaves_out_what_the_device_does(monkeypatch):
    device = SimulatedDevice()
    sampler = GivenTimes()
    sampler.synchronize = device.synchronize
    monkeypatch.setattr("atlas.timing.clock.time.perf_counter", lambda: device.host / 1e6)
    taken = Clock.of_parts(sampler, SaidBoard()).call_us(device.kernel(device_us=30.0, host_us=8.0))
    assert taken == pytest.approx(8.0)


def test_host_time_of_a_call_is_the_median_of_eleven_rows_of_fifty(monkeypatch):
    host, calls = [0.0], itertools.count(-1)  # the first call is not timed

    def slower_by_the_row():
        host[0] += 1e-6 * (1 + next(calls) // 50)  # 1, 2, ... 11 us

    monkeypatch.setattr("atlas.timing.clock.time.perf_counter", lambda: host[0])
    assert clock().call_us(slower_by_the_row) == pytest.approx(6.0)
    assert next(calls) == 11 * 50


def test_the_cpu_is_timed_by_the_same_calls_with_few_samples():
    calls = []
    timings = Clock("cpu").interleave({"a": lambda: calls.append(1), "b": lambda: None})
    assert len(timings["a"].samples_us) == 3
    assert len(calls) == 4  # one call before them
    assert not timings["a"].throttled
    assert timings["a"].sm_clock_mhz is None


def test_protocol_has_a_version():
    assert PROTOCOL == "timing/2"
