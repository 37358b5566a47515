"""Who is timed on a case: every variant with its tuned and its default config, and every peer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..cuda.programs import Programs
from ..declaration import GPU, Case, Config, Declaration, Pass, Peer, Variant
from ..results.subject import PassCase
from ..timing.samples import Thunk


@dataclass(frozen=True)
class Provider:
    """One row-to-be.  ``prepare(inputs)`` does what is not timed and returns the thunk; None where it cannot run.

    ``status`` and ``reason`` say why it cannot; ``same_as`` is the key of a provider with the same config, whose
    figures it shares; ``searches`` says that preparing times candidates on the device.
    """

    name: str
    kind: str
    config: Config | None = None
    prepare: Callable[[Mapping[str, Any]], Thunk] | None = None
    status: str = ""
    reason: str = ""
    same_as: str = ""
    searches: bool = False

    @property
    def key(self) -> str:
        """Unique among the providers of a case."""
        return f"{self.kind} {self.name}"


class Tuned:
    """The best config of each variant on each case, and what became of every trial, out of an autotune document.

    ``best`` names one variant a case; for the others it is the trial that came furthest in the search, and of those
    the fastest.
    """

    def __init__(self, document: Mapping[str, Any]):
        self._trials: dict[tuple[PassCase, str], list[Mapping[str, Any]]] = {}
        for trial in document["trials"]:
            self._trials.setdefault((PassCase.of(trial), trial["variant"]), []).append(trial)
        self._best = {(PassCase.of(best), best["variant"]): best["config"] for best in document["best"]}

    def trials(self, direction: str, case: Case, variant: str) -> list[Mapping[str, Any]]:
        """All trials of a variant on a case."""
        return self._trials.get((PassCase.at(direction, case), variant), [])

    def config(self, direction: str, case: Case, variant: str) -> dict[str, Any] | None:
        """The tuned config, or None where no trial ran to its end."""
        best = self._best.get((PassCase.at(direction, case), variant))
        ran = [trial for trial in self.trials(direction, case, variant) if trial["status"] in _RAN]
        if best is None and ran:
            best = min(ran, key=_rank)["config"]
        return None if best is None else dict(best)


_RAN = ("ok", "stopped")
"""Trials that ran; one is stopped when others are far faster."""
_LIMITS = ("timeout", "out_of_memory")
"""Trials that ended so say that the case is too large for the variant, not that the variant is broken."""


def _rank(trial: Mapping[str, Any]) -> tuple[bool, int, float]:
    median = trial.get("median_us")
    return trial["status"] != "ok", -trial.get("rung", 0), math.inf if median is None else median


def providers(
    work: Pass, direction: str, case: Case, gpu: GPU, tuned: Tuned, programs: Programs | None = None
) -> list[Provider]:
    """All providers of a case, variants first; without ``programs`` peers in CUDA C++ are missing."""
    found = [provider for variant in work.variants for provider in _of_variant(variant, direction, case, gpu, tuned)]
    return found + [_of_peer(name, peer, case, gpu, programs) for name, peer in work.peers.items()]


def _of_variant(variant: Variant, direction: str, case: Case, gpu: GPU, tuned: Tuned) -> Iterator[Provider]:
    lacking = variant.unsupported(case, gpu)
    if lacking:
        yield Provider(variant.name, "variant", status="unsupported", reason=lacking)
        yield Provider(variant.name, "default", status="unsupported", reason=lacking)
        return
    trials = tuned.trials(direction, case, variant.name)
    best = tuned.config(direction, case, variant.name)
    if best is not None:
        yield Provider(variant.name, "variant", best, _launches(variant, best))
    else:
        yield Provider(variant.name, "variant", **_no_success(trials))
    default = dict(variant.default(case, gpu))
    unfit = variant.fits(default, case, gpu)
    ended = [trial for trial in trials if trial["config"] == default and trial["status"] not in _RAN]
    if unfit:
        yield Provider(variant.name, "default", default, status="unsupported", reason=unfit)
    elif ended:  # a config that crashed the tuner's worker would crash this process
        yield Provider(variant.name, "default", default, **_no_success(ended))
    else:
        same = f"variant {variant.name}" if default == best else ""
        yield Provider(variant.name, "default", default, _launches(variant, default), same_as=same)


def _no_success(trials: list[Mapping[str, Any]]) -> dict[str, str]:
    """The status and reason of a row whose trials all failed."""
    if not trials:
        return {"status": "unsupported", "reason": "autotune tried no config of it on this case"}
    counts = Counter(trial["status"] for trial in trials)
    said = next((f": {trial['reason']}" for trial in trials if trial["reason"]), "")
    ended = ", ".join(f"{count} {status}" for status, count in counts.items())
    status = "unsupported" if set(counts) <= set(_LIMITS) else "failed"
    return {"status": status, "reason": f"in autotune: {ended}{said}"}


def _launches(variant: Variant, config: Config) -> Callable[[Mapping[str, Any]], Thunk]:
    return lambda inputs: lambda: variant.launch(**inputs, config=config)


def _of_peer(name: str, peer: Peer, case: Case, gpu: GPU, programs: Programs | None) -> Provider:
    missing = peer.missing()
    if missing:
        return Provider(name, "peer", status="missing", reason=missing)
    refused = peer.handles(case)
    if refused:
        return Provider(name, "peer", status="unsupported", reason=refused)
    if gpu.functional and peer.compiles:
        return Provider(name, "peer", status="unsupported", reason="functional run: nothing is compiled for the CPU")
    if not peer.launcher:
        return Provider(name, "peer", prepare=lambda inputs: peer.prepare(**inputs), searches=peer.searches)
    status, reason = programs.obstacle if programs else ("missing", "nothing was built for this benchmark")
    if status:
        return Provider(name, "peer", status=status, reason=reason)
    return Provider(name, "peer", prepare=lambda inputs: programs.prepare(peer.launcher, inputs))


def steps(declaration: Declaration) -> list[dict[str, str]]:
    """What the benchmark's document keeps of the declared variants: pass, name, the one it follows, what it changes.

    Each comes after the one it follows, so that a reader climbs from the first.
    """
    found = []
    for direction, work in declaration.passes.items():
        rungs: dict[str, list[Any]] = {}
        for variant in work.variants:
            rungs.setdefault(variant.follows, []).append(variant)

        waiting = list(rungs.get("", []))
        while waiting:
            variant = waiting.pop(0)
            found.append(
                {
                    "direction": direction,
                    "variant": variant.name,
                    "follows": variant.follows,
                    "summary": variant.summary,
                }
            )
            waiting = rungs.get(variant.name, []) + waiting
    return found
