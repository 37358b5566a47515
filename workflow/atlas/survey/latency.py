"""What a launch costs: the host's time for one call, the device's for a kernel that does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..timing import Clock
from . import kernels
from .ways import row


def roofs(clock: Clock, device: torch.device) -> Iterator[dict[str, Any]]:
    """The rows ``launch_latency empty_kernel event_floor``, in microseconds."""
    one = torch.zeros(1, device=device)
    yield row(
        "launch_latency",
        clock.call_us(lambda: one.add_(1.0)),
        "us",
        "host time of one of many one-element adds by torch, called one after another without waiting",
    )
    empty = clock.measure(lambda: kernels.empty[(1,)](num_warps=1))
    yield row("empty_kernel", empty.median_us, "us", "device time of a kernel that does nothing, queued ahead", empty)
    yield row("event_floor", clock.floor_us(), "us", "what two events measure with nothing between them")
