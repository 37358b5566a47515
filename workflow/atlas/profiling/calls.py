"""Launches sorted by the call that made them: the watched process launches a marker before each."""

from __future__ import annotations

from collections.abc import Sequence

from .ncu import Launch

MARKER = "atlas_marker"
"""The kernel that :mod:`.launches` launches before each call."""


def by_call(launches: Sequence[Launch], expected: int) -> list[list[Launch]]:
    """The launches of each call, in order; RuntimeError unless there are ``expected`` calls, each with a kernel."""
    calls: list[list[Launch]] = []
    for launch in launches:
        if launch.kernel == MARKER:
            calls.append([])
        elif calls:
            calls[-1].append(launch)
    if len(calls) != expected or not all(calls):
        raise RuntimeError(f"ncu saw {len(calls)} calls, {sum(map(bool, calls))} of them with kernels; "
                           f"{expected} were made")  # fmt: skip
    return calls
