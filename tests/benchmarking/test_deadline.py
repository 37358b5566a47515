"""Preparing a peer may hang; the benchmark may not."""

import signal
import threading
import time

import pytest
from atlas.benchmarking.measurement import deadline


def test_a_body_that_takes_too_long_is_ended():
    with pytest.raises(TimeoutError, match="compiling took more than 0.05 s"), deadline(0.05, "compiling"):
        time.sleep(5)


def test_a_body_in_time_is_left_alone_and_no_alarm_remains():
    before = signal.getsignal(signal.SIGALRM)
    with deadline(60, "compiling"):
        pass
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is before


def test_other_threads_have_no_limit_and_no_error():
    done = []

    def body():
        with deadline(0.01, "compiling"):
            time.sleep(0.05)
            done.append(True)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert done
