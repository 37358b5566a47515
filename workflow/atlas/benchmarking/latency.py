"""What short work costs beside its device time: the host's time of a call, and a replay inside a CUDA graph."""

from __future__ import annotations

import torch

from ..timing import Clock
from ..timing.types import Thunk

SHORT_US = 20.0
"""Below this device time launching matters, since it takes the host about as long."""
CALLS = 20
"""Calls in one graph."""


def graph_us(clock: Clock, thunk: Thunk) -> float:
    """Microseconds of one of :data:`CALLS` calls captured in one CUDA graph, replayed.

    L2 is cold for the first call of a replay and holds what the one before left for the others: a warm figure.  Raises
    RuntimeError where the work cannot be captured.
    """
    usual, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(usual)
    with torch.cuda.stream(side):  # capture runs on another stream: let libraries set up their workspaces there
        thunk()
    usual.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=side):
            for _ in range(CALLS):
                thunk()
    finally:
        torch.cuda.set_stream(usual)  # a capture that fails leaves its own stream behind
    try:
        return clock.measure(graph.replay, min_seconds=0.01, max_samples=50).median_us / CALLS
    finally:
        graph.reset()
