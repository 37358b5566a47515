"""Energy: joules of a call, of the fastest variant and of the fastest peer, on the cases with the most traffic."""

from __future__ import annotations

import argparse
import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import AtlasError, in_a_line
from ..host.progress import progress
from ..results.subject import PassCase
from ..results.verdict import best_of_each_case, busiest
from . import called, frame

if TYPE_CHECKING:
    import torch

    from ..benchmarking.energy import Meter

_SHARED_KEYS = ("provider", "provider_kind", "direction", "dtype", "sizes", "config", "bytes", "flops")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``python -m atlas energy``."""
    frame.add_common_arguments(parser)
    parser.add_argument("--cases", type=int, default=1, metavar="N", help="cases a pass, those with the most traffic "
                        "first (default: 1)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=1.0, help="of calls a repeat (default: 1)")
    parser.add_argument("--repeats", type=int, default=3, help="for the spread (default: 3)")


def run(arguments: argparse.Namespace) -> None:
    """Write ``results/measured/<gpu>/<kernel>/energy.json``; where the board tells nothing, it says so."""
    from ..benchmarking.energy import PROTOCOL

    job = frame.job("energy", arguments)
    if job.functional:
        raise AtlasError(f"GPU {job.gpu_name!r} is the interpreter, whose energy says nothing; give another GPU")
    with frame.leased(job) as lease, called.settled(job, lease) as used:
        empty = {"protocol": PROTOCOL, "rows": []} | used
        frame.print_outcome(job, frame.write_document(job, empty, lambda job: _body(job) | used))


def _body(job: frame.Job) -> dict[str, Any]:
    from ..benchmarking import energy
    from ..host import runtime
    from ..timing.device import CudaDevice, board_of

    frame.require_ok(job, "benchmark")
    asked = list(choose(job.earlier("benchmark")["rows"], job.arguments.cases))
    if not asked:
        raise frame.Stop("skipped", "the benchmark timed no variant")
    device = runtime.device_of(job.gpu_name, job.block)
    try:
        meter = energy.meter_of(device)
        clocked = CudaDevice(device)
        clocked.soak(board_of(clocked.index))
        rest = energy.at_rest(meter)
    except energy.Unmeasured as error:
        raise frame.Stop("skipped", str(error)) from None
    rows = []
    with progress() as shown:
        task = shown.add_task(f"energy {job.kernel} on {job.gpu_name}", total=len(asked), note="")
        for row in asked:
            shown.update(task, note=f"{PassCase.of(row)} {row['provider']}")
            rows.append({key: row[key] for key in _SHARED_KEYS} | _measured(job, row, device, meter))
            shown.advance(task)
    failed = [row["reason"] for row in rows if row["status"] == "failed" and row["provider_kind"] != "peer"]
    ending = {"status": "failed", "reason": failed[0]} if failed else {}
    return {"protocol": energy.PROTOCOL, "how": meter.how, "rest_w": rest, "rows": rows} | ending


def choose(rows: Sequence[Mapping[str, Any]], count: int) -> Iterator[Mapping[str, Any]]:
    """Of each pass's ``count`` busiest cases the fastest right variant, and the fastest peer."""
    best = best_of_each_case(rows)
    for direction in dict.fromkeys(row["direction"] for row in best):
        for top in busiest([row for row in best if row["direction"] == direction])[:count]:
            yield top
            for row in rows:
                peer = row["provider_kind"] == "peer" and row["provider"] == top["peer"] and row["status"] == "ok"
                if peer and PassCase.of(row) == PassCase.of(top):
                    yield row


def _measured(job: frame.Job, row: Mapping[str, Any], device: torch.device, meter: Meter) -> dict[str, Any]:
    """The figures of one provider on one case; what it needed is freed."""
    import torch

    from ..benchmarking import energy
    from ..benchmarking.measurement import PREPARE_SECONDS, deadline, precision
    from ..profiling import launches, ncu
    from ..timing.device import board_of

    loop = None
    try:
        with precision(row["dtype"]), deadline(PREPARE_SECONDS, "preparing it"):
            thunk = launches.thunk(ncu.asked(job.kernel, job.gpu_name, job.folder, row), device)
            for _ in range(2):
                thunk()
            # Autograd runs a backward on the stream of its forward, so a peer's backward cannot be captured.
            loop = energy.DeviceLoop(thunk, capture=row["provider_kind"] != "peer" or row["direction"] == "forward")
        with precision(row["dtype"]):
            found = energy.measure(loop, meter, job.arguments.seconds, job.arguments.repeats)
        board = board_of(device.index or 0).read()  # at work still: a chunk is queued
        state = {"sm_clock_mhz": board.sm_clock_mhz, "throttled_by": list(board.throttled)}
        return {"status": "ok", "reason": "", "captured": loop.captured} | energy.figures(found) | state
    except Exception as error:
        return {"status": "failed", "reason": in_a_line(error)}
    finally:
        with contextlib.suppress(RuntimeError):  # of a device that was lost; the next row says so
            if loop is not None:
                loop.close()
            loop = thunk = None
            gc.collect()
            torch.cuda.empty_cache()
