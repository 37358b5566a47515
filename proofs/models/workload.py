"""A Hugging Face model's workload: captured, tuned, exported; its step before and after, in a handful of commands."""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atlas.errors import AtlasError, in_a_line
from atlas.results.pieces import Pieces
from atlas.stages import frame

from .. import scratch
from ..evidence import Claim, Evidence, at_least, at_most, none_of
from . import hugging_face
from .step import FIELDS
from .way_in import WayIn

NO_SLOWER = 0.99
"""Least tokens a second with the exported configs over those before, in the median of the rounds: 1 but for noise."""

MOST_COMMANDS = 5
"""From a program to its faster self."""

NOISE, LEAST_APART = 2.0, 2**-7
"""Most that losses after may differ from those before: this many times what those before differ from torch's, or so
much of the first loss, the spacing of bf16."""

WAYS = ("torch", "before", "after")
"""How the program runs, each in a process of its own: without the kernels, with them, with the exported configs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--models``, ``--steps``, ``--rounds``, ``--set``, ``--cores``, ``--scratch`` and sizes of the model."""
    scratch.add_folder(parser)
    scratch.add_cores(parser)
    parser.add_argument("--models", default="llama", metavar="A,B", help="llama, bert (default: llama)")
    parser.add_argument("--steps", type=int, default=40, help="that a run times (default: 40)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each way, in turns (default: 5)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further words of snakemake --config")
    for name in FIELDS:
        parser.add_argument(f"--{name}", type=int, help="of the model, instead of its own")


def run(job: frame.Job) -> Evidence:
    """Go all the way with every model; AtlasError on a GPU that only the interpreter stands for."""
    given = job.arguments
    if job.functional:
        raise AtlasError(f"--gpu {job.gpu_name}: these are claims of speed; name a GPU of this host")
    names = [name.strip() for name in given.models.split(",") if name.strip()]
    if unknown := set(names) - set(hugging_face.MODELS):
        known = ", ".join(hugging_face.MODELS)
        raise AtlasError(f"--models: unknown {', '.join(sorted(unknown))}; there are {known}")
    frame.at_least(given, steps=1, rounds=1)
    if importlib.util.find_spec("transformers") is None:
        raise AtlasError("--models: llama and bert need the package transformers: pip install transformers")
    with scratch.folder(job) as folder:
        return evidence([found_of(way_in(job, name, folder), given.rounds, folder) for name in names])


def way_in(job: frame.Job, name: str, folder: Path) -> WayIn:
    """The commands for a model, as the arguments ask for them."""
    given = job.arguments
    sizes = [word for field in FIELDS if (size := getattr(given, field)) for word in (f"--{field}", str(size))]
    cores = scratch.cores_of(given)
    return WayIn(job, name, folder / name / "checkout", cores, given.steps, sizes, given.set)


def found_of(way: WayIn, rounds: int, folder: Path) -> dict[str, Any]:
    """What became of one model: by step what was kept of it, and ``reason`` where a command failed.

    Each command is kept as soon as it ended; one that was cut off goes on where it was.
    """
    asked = {"steps": way.steps, "sizes": list(way.sizes), "settings": list(way.settings)}
    kept = Pieces(folder / "workload.jsonl", scratch.context_of_all(way.job) | asked)
    found: dict[str, Any] = {"model": way.model, "gpu": way.job.gpu_name, "commands": way.commands(), "reason": ""}
    found |= {name: [] for name in WAYS}

    def once(step: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        piece = kept.once(f"{way.model}, {step}", make)
        print(f"{way.model}, {step}: {piece['seconds']:.0f} s", flush=True)
        return piece

    try:
        if f"{way.model}, watch" not in kept.all():
            way.copy()
        with frame.leased(way.job):
            found["watch"] = once("watch", lambda: {"seconds": way.do("watch")} | way.seen())
        found["tune"] = once("tune", lambda: {"seconds": way.do("tune"), "stages": way.stages()} | way.predicted())
        found["export"] = once("export", lambda: {"seconds": way.do("export"), "untuned": way.untuned()})
        with frame.leased(way.job):
            for number in range(rounds):
                for name in WAYS if number % 2 == 0 else reversed(WAYS):  # no way is always the first
                    found[name].append(once(f"{name} {number}", lambda name=name: way.train(name)))
    except Exception as error:
        found["reason"] = in_a_line(error)
    return found


def evidence(found: Sequence[Mapping[str, Any]]) -> Evidence:
    """The claims, of the worst model each, a row a step, and the commands."""
    claims: list[Claim] = [
        none_of("models of which a command failed", (one for one in found if one["reason"])),
        at_most("commands from the program to its faster self", max(len(one["commands"]) for one in found),
                MOST_COMMANDS),
        at_most("problems that were not tuned", _left(found), 0),
        at_least("tokens a second after over before, at least", _worst(min, map(gain, found)), NO_SLOWER),
        at_most("losses after differ from those before, in parts of what is allowed, at most",
                _worst(max, map(apart, found)), 1.0),
    ]  # fmt: skip
    return Evidence(claims, [row for one in found for row in rows(one)], list(_notes(found)))


def gain(found: Mapping[str, Any]) -> float | None:
    """Tokens a second after over before: the median of the rounds, each of neighbours in time."""
    pairs = zip(found["before"], found["after"], strict=False)
    ratios = [after["tokens_per_second"] / before["tokens_per_second"] for before, after in pairs]
    return statistics.median(ratios) if ratios else None


def apart(found: Mapping[str, Any]) -> float | None:
    """Most that a loss after differs from that before, in parts of what is allowed."""
    if not all(found[name] for name in WAYS):
        return None
    torch, before, after = (found[name][0]["losses"] for name in WAYS)
    return _most(before, after) / max(NOISE * _most(torch, before), LEAST_APART * torch[0])


def _most(expected: Sequence[float], found: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(expected, found, strict=True))


def rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row a step: seconds of its command (the median where it ran often), and of the program its speed.

    ``ms`` are of a step; ``saved ms`` what a step after takes less, ``report says`` what the report expects of that:
    beside torch over the fastest peers, beside before over the default configs.
    """
    shown = []
    for step in ("watch", "tune", "export"):
        if done := found.get(step):
            shown.append(_row(found, step) | {"seconds": done["seconds"], "found": _said(step, found)})
    after = _speed(found["after"])
    expected = found.get("tune", {})
    for name, key in zip(WAYS, ("over peers ms", "over default ms", ""), strict=True):
        if not found[name]:
            continue
        speeds = sorted(one["tokens_per_second"] for one in found[name])
        speed = statistics.median(speeds)
        ms = _ms(found, name)
        row = {
            "seconds": statistics.median(one["seconds"] for one in found[name]), "runs": len(speeds), "tokens/s": speed,
            "least": speeds[0], "most": speeds[-1], "after over it": after and after / speed, "ms": ms,
            "saved ms": ms - _ms(found, "after") if after and name != "after" else None,
            "report says": expected.get(key),
        }  # fmt: skip
        shown.append(_row(found, name) | row)
    return shown


COLUMNS = (
    "seconds", "runs", "tokens/s", "least", "most", "after over it", "ms", "saved ms", "report says", "found"
)  # fmt: skip


def _row(found: Mapping[str, Any], step: str) -> dict[str, Any]:
    return {"model": found["model"], "step": step} | dict.fromkeys(COLUMNS)


def _ms(found: Mapping[str, Any], name: str) -> float:
    """Of one step, in the median of its runs."""
    return statistics.median(one["step_ms"] for one in found[name])


def _speed(runs: Sequence[Mapping[str, Any]]) -> float | None:
    return statistics.median(one["tokens_per_second"] for one in runs) if runs else None


def _said(step: str, found: Mapping[str, Any]) -> str | None:
    if step == "watch":
        watch = found["watch"]
        return (
            f"{watch['calls']} calls of {watch['kinds']} kinds: {watch['problems']} problems of {watch['kernels']} "
            "kernels"
        )
    if step == "tune":
        return ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in found["tune"]["stages"].items())
    if step == "export":
        return f"{len(_untuned(found))} problems not tuned"
    return None


def _left(found: Sequence[Mapping[str, Any]]) -> int | None:
    """How many problems were not tuned; None where nobody came to know."""
    return sum(len(_untuned(one)) for one in found) if all("export" in one for one in found) else None


def _untuned(found: Mapping[str, Any]) -> list[str]:
    return found.get("export", {}).get("untuned", [])


def _worst(which: Callable[..., float], figures: Any) -> float | None:
    """The worst of all models; None where one has none."""
    known = list(figures)
    return which(known) if known and None not in known else None


def _notes(found: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = [
        "Each command ran in a copy of the checkout, the program in a fresh process each time, in turns. seconds are "
        "wall time, start-up included, of the last attempt where one was cut off. before: with the library's configs, "
        "which are no defaults; so report says, beside it, is of another comparison than saved ms.",
        "A step runs on host and device: what kernels save of it is seen as far as the device is what it waits for.",
    ]
    for one in found:
        notes += [f"{one['model']}, {step}: {typed(one, step)}" for step in one["commands"]]
        notes += [f"{one['model']}, not tuned: {name}" for name in _untuned(one)]
        notes += [f"{one['model']}: {one['reason']}"] if one["reason"] else []
    return notes


def typed(found: Mapping[str, Any], step: str) -> str:
    """A step's command as a user types it."""
    words = ["python" if word == sys.executable else word for word in found["commands"][step]]
    first = [] if words[0] == "snakemake" else ["python", "-m"]
    shown = shlex.join([*first, *words])
    return f"KERNEL_ATLAS_TUNED={found['model']}-{found['gpu']}.json {shown}" if step == "after" else shown
