"""At shapes that nobody tuned, public functions are as fast as the fastest peer: geometric mean, and how many lose."""

from __future__ import annotations

import argparse
import gc
import importlib
import time
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas import catalog
from atlas.errors import AtlasError
from atlas.host.stopwatch import Stopwatch
from atlas.results.beyond import OURS, against_peers
from atlas.results.subject import label
from atlas.results.verdict import geometric_mean
from atlas.stages import frame

from .. import scratch
from ..evidence import Evidence, at_least, at_most, none_of

if TYPE_CHECKING:
    from atlas.benchmarking.beyond import Bench
    from atlas.host.leases import Lease

    from .calls import Call

MEAN, SLOWER, SLOW_SHARE, WORST = 1.22, 0.9, 0.04, 0.75
"""Least geometric mean of the fastest peer's time over ours, the share that may be below ``SLOWER``, the worst."""
SHOWN = 0.95
"""Losses below this are listed."""
CASES, SECONDS = 8, 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--kernels``, where rows are kept, the seed, how many cases, and how long."""
    scratch.add_arguments(parser)
    scratch.add_cores(parser)
    parser.add_argument("--seed", type=int, help="of the shapes (default: the scratch folder's, or else another one "
                        "each time)")  # fmt: skip
    parser.add_argument("--cases", type=int, default=CASES, metavar="N", help=f"shapes a kernel (default: {CASES})")
    parser.add_argument("--seconds", type=float, default=SECONDS,
                        help="of the whole run, compilers included: what would not end in time is not begun "
                        "(default: an hour)")  # fmt: skip
    parser.add_argument("--documents", action="store_true", help="write each kernel's calls as its beyond.json, too, "
                        "which a record keeps")  # fmt: skip


def run(job: frame.Job) -> Evidence:
    """Draw, and prepare and time in chunks; a proof cut short has some of each kernel, and goes on from there."""
    if job.functional:
        raise AtlasError(f"--gpu {job.gpu_name}: these are claims of speed; name a GPU of this host")
    ends = time.monotonic() + job.arguments.seconds
    with frame.leased(job) as lease, scratch.folder(job) as folder:
        return measured(job, lease, folder, ends)


def measured(job: frame.Job, lease: Lease | None, folder: Path, ends: float) -> Evidence:
    """What there is of the folder's rows and of those that are made until ``ends`` of :func:`time.monotonic`."""
    from atlas.benchmarking import beyond
    from atlas.host import runtime
    from atlas.timing import Clock

    from . import ahead
    from . import beyond as written
    from .calls import Kept, rounds, seed_of
    from .chunks import Chunks

    kernels, watch = scratch.kernels_of(job.arguments), Stopwatch()
    watch.enter("draw")
    seed = seed_of(folder, job.arguments.seed, time.time_ns() % 10**6)
    declarations = {name: catalog.load(name, interpret=job.functional) for name in kernels}
    turns = rounds(declarations, job.gpu(), seed, job.arguments.cases)
    gpu, device = job.gpu(), runtime.device_of(job.gpu_name, job.block)
    clock = Clock(device)
    benches = {
        name: beyond.Bench(one, gpu, device, clock, latency=False, watch=watch) for name, one in declarations.items()
    }
    kept = Kept(folder, kernels, seed, lambda name: scratch.context(job, name))
    workers = ahead.Workers(job, lease, declarations)
    chunks = Chunks(workers.prepare, lambda call: _row_of(benches[call.kernel], call), kept, ends,
                    spare=2 * workers.count, watch=watch)  # fmt: skip
    print(f"seed {seed}: {sum(map(len, turns))} calls, {workers.count} workers", flush=True)
    importlib.import_module("torch._inductor.compile_fx")
    _let_rest_be()
    chunks.run(turns)
    if job.arguments.documents:
        of_kernel = {name: [call for one in turns for call in one if call.kernel == name] for name in kernels}
        made = [
            written.write(job, lease, declaration, seed, kept.rows(of_kernel[name]))
            for name, declaration in declarations.items()
        ]
        chunks.notes.append(f"beyond.json of {sum(map(bool, made))} kernels, which are validated in {job.results}")
    spent = ", ".join(f"{phase} {seconds:.0f}" for phase, seconds in watch.rounded().items())
    notes = [f"shapes drawn by seed {seed}, {job.arguments.cases} a kernel", *chunks.notes, f"seconds: {spent}"]
    return evidence(kept.rows([call for one in turns for call in one]), notes)


def _row_of(bench: Bench, call: Call) -> dict[str, Any] | None:
    """The call's row with those of its providers, without what peers warn of; None where it says nothing."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = bench.rows(call.case, call.mode)
    _let_rest_be()
    if not tells(found):
        return None
    return summary(call.kernel, found) | {"providers": found, "seconds": time.perf_counter() - began}


def _let_rest_be() -> None:
    """Keep what is no garbage by now out of further collections: of modules and compiled graphs each took 0.2 s."""
    gc.collect()
    gc.freeze()


def tells(found: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a call's rows, ours first, say anything: ours went wrong, or a peer does the same.

    None does for a step of a loss whose peers return gradients with it: their result has none of its own.
    """
    return bool(found) and (found[0]["status"] != "ok" or any(row["status"] != "unsupported" for row in found[1:]))


def summary(kernel: str, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row of one call: our time, the fastest peer's, and theirs over ours; without a time it says why."""
    (call,) = against_peers(found)
    why = "; ".join(f"{row['provider']}: {row['reason']}" for row in found if row["provider"] != OURS)
    return {
        "kernel": kernel,
        "mode": call["mode"],
        "case": f"{label(call['sizes'])} {call['dtype']}",
        "us": call.get("median_us"),
        "peer": call["peer"],
        "peer_us": call["peer_us"],
        "ratio": call["ratio"],
        "reason": call["reason"] or ("" if call["ratio"] else why),
        "wrong": call["status"] == "wrong",
    }


def evidence(rows: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> Evidence:
    """The claims, and as rows the kernels' means and then every loss."""
    ratios = [row["ratio"] for row in rows if row["ratio"]]
    share = sum(ratio < SLOWER for ratio in ratios) / len(ratios) if ratios else None
    claims = [
        none_of("calls that failed or are wrong", (row for row in rows if row["us"] is None or row["wrong"])),
        at_least("geometric mean of the fastest peer's time over ours", geometric_mean(ratios), MEAN),
        at_most(f"share of {len(ratios)} calls below {SLOWER}", share, SLOW_SHARE),
        at_least("the worst call", min(ratios, default=None), WORST),
    ]
    return Evidence(claims, [*_means(rows), *_losses(rows)], notes)


def _means(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    groups = defaultdict(list)
    for row in rows:
        if row["ratio"]:
            groups[row["kernel"], row["mode"]].append(row["ratio"])
    found = []
    for (kernel, mode), ratios in sorted(groups.items()):
        slow = sum(ratio < SLOWER for ratio in ratios)
        found.append(_row(kernel, mode, f"{len(ratios)} cases, {slow} below {SLOWER}", geometric_mean(ratios)))
    return found


def _losses(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    lost = sorted((row for row in rows if row["ratio"] and row["ratio"] < SHOWN), key=lambda row: row["ratio"])
    names = ("kernel", "mode", "case", "ratio", "us", "peer", "peer_us", "reason")
    return [_row(*(row[name] for name in names)) for row in (*lost, *(row for row in rows if not row["ratio"]))]


def _row(kernel, mode, case, ratio, us=None, peer=None, peer_us=None, reason="") -> dict[str, Any]:
    return {
        "kernel": kernel,
        "mode": mode,
        "case": case,
        "peer over ours": ratio,
        "us": us,
        "fastest peer": peer or "",
        "its us": peer_us,
        "reason": reason,
    }
