"""The one clock: tuner, benchmark and survey time with it and with nothing else, so figures cannot differ by method.

Protocol ``timing/2``, on a GPU:

1.  Once per process the GPU is kept busy until its SM clock is steady (:meth:`Clock.warm_up`), and again, briefly, when
    it has rested for half a second.
2.  Before each sample a buffer of at least twice the last cache before memory is written, so no input is found there.
    The written lines are dirty: a sample pays for evicting them, as it would after any other kernel.
3.  A batch of samples is queued behind a kernel that only waits, so launching is over before the first sample starts.
    A sample whose start event had passed when its end event was being queued would contain launch latency: its whole
    batch is thrown away and repeated behind a longer wait.  A call that waits for the device by itself can never be
    queued ahead; then ``queued`` is False and the figure contains launch latency.
4.  Before and after the batch eight samples of nothing are queued and dropped: at the ends of a queue launches cost the
    device less, by up to half a microsecond (:mod:`atlas.timing.samplers`).
5.  Device events bracket the call.  What a pair of events around nothing takes is :attr:`Clock.floor_us`; it is
    reported and never subtracted.
6.  Several thunks take turns, in a fresh order each round: random, seeded with their names, and balanced so that each
    takes every place and follows every other equally often (:mod:`atlas.timing.samples`).
7.  At least ``min_samples`` samples and ``min_seconds`` of them, then until the distribution-free 95 % confidence
    interval of the median is within 0.5 % of it on either side, at most ``max_samples`` samples or five times
    ``min_seconds``.  (The interval takes samples as independent; it decides when to stop and nothing else.)
8.  All samples are kept, no outlier is dropped.  Centre: median; interval: quartiles.
9.  From a batch's first sample on, the board is asked for SM clock, temperature, power and the reasons for a lowered
    clock.  A throttled measurement is repeated once after a pause; if that is throttled too, it stands and says why.

On the CPU (Triton's interpreter) the same functions take a few samples of wall time, which say nothing of speed.

``timing/1`` rotated and mirrored one order, so that providers kept their neighbours; used the samples at the ends of a
queue; and asked the board while the device still waited for the first sample.
"""

from .clock import Clock
from .samples import PROTOCOL, Timing

__all__ = ["PROTOCOL", "Clock", "Timing"]
