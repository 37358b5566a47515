"""A device whose host and queue are simulated, a board that says what it is told, a sampler of given times."""

from atlas.timing.device import Reading
from atlas.timing.samplers import Batch


class SimulatedDevice:
    """A GPU as a timeline: the host queues work in ``host_us`` a call, the device does it in order, never early.

    ``queue_limit`` is how much work may wait before queueing blocks the host, as a real launch queue does.
    """

    def __init__(self, launch_us=5.0, queue_limit=10**9):
        self.launch_us, self.queue_limit = launch_us, queue_limit
        self.host = 0.0
        self.finished = [0.0]
        self.blocks = []
        self.flushes = 0

    def _queue(self, device_us, host_us):
        if len(self.finished) > self.queue_limit:
            self.host = max(self.host, self.finished[-self.queue_limit])
        self.host += host_us
        self.finished.append(max(self.finished[-1], self.host) + device_us)

    def kernel(self, device_us, host_us=None):
        """A thunk that takes the host and the device this long."""
        return lambda: self._queue(device_us, self.launch_us if host_us is None else host_us)

    def block(self, microseconds):
        self.blocks.append(microseconds)
        self._queue(microseconds, self.launch_us)

    def flush(self):
        self.flushes += 1
        self._queue(40.0, self.launch_us)

    def event(self):
        return _SimulatedEvent(self)

    def synchronize(self):
        self.host = max(self.host, self.finished[-1])

    def now_us(self):
        return self.host

    def idle(self, microseconds):
        self.host += microseconds


class _SimulatedEvent:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.device._queue(0.0, 1.0)
        self.at = self.device.finished[-1]

    def query(self):
        return self.at <= self.device.host

    def elapsed_time(self, end):
        return (end.at - self.at) / 1000


class GivenTimes:
    """A sampler that plays back the times a thunk yields when called: a thunk returns its own microseconds."""

    def __init__(self, queued=True):
        self.order = []
        self.batches = []
        self.queued = queued

    def take(self, calls, meanwhile=None):
        samples = [call() for call in calls]
        self.order += calls
        self.batches.append(len(calls))
        if meanwhile is not None:
            meanwhile()
        return Batch(samples, self.queued)

    def forget(self):
        pass

    def synchronize(self):
        pass


class SaidBoard:
    """A board that gives the readings it was given, the last one again and again."""

    def __init__(self, *readings):
        self.readings = list(readings) or [Reading()]
        self.asked = 0

    def read(self):
        self.asked += 1
        return self.readings[min(self.asked, len(self.readings)) - 1]


class Sleeper:
    """A device that only notes when it is soaked and warmed again."""

    def __init__(self):
        self.notes = []

    def soak(self, board):
        self.notes.append("soak")

    def warm_again(self, board):
        self.notes.append("warm again")
