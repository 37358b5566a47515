"""The one clock: tuner, benchmark and survey time with it and with nothing else, so figures cannot differ by method.

Protocol ``timing/1``, on a GPU:

1.  Once per process the GPU is kept busy until its SM clock is steady (:meth:`Clock.warm_up`).
2.  Before each sample a buffer of at least twice the device's own L2 is written, so no input is found in L2.  The
    written lines are dirty: a sample pays for evicting them, as it would after any other kernel.
3.  A batch of samples is queued behind a kernel that only waits, so launching is over before the first sample starts.
    A sample whose start event had passed when its end event was being queued would contain launch latency: its whole
    batch is thrown away and repeated behind a longer wait.  A call that waits for the device by itself can never be
    queued ahead; then ``queued`` is False and the figure contains launch latency.
4.  Device events bracket the call.  What a pair of events around nothing takes is :attr:`Clock.floor_us`; it is
    reported and never subtracted.
5.  At least ``min_samples`` samples and ``min_seconds`` of them, then until the distribution-free 95 % confidence
    interval of the median is within 0.5 % of it on either side, at most ``max_samples`` samples or five times
    ``min_seconds``.  (The interval takes samples as independent; it decides when to stop and nothing else.)
6.  All samples are kept, no outlier is dropped.  Centre: median; interval: quartiles.
7.  While a batch runs the board is asked for SM clock, temperature, power and the reasons for a lowered clock.  A
    throttled measurement is repeated once after a pause; if that is throttled too, it stands and is flagged.

On the CPU (Triton's interpreter) the same functions take a few samples of wall time, which say nothing of speed.
"""

from .clock import Clock
from .types import PROTOCOL, Timing

__all__ = ["PROTOCOL", "Clock", "Timing"]
