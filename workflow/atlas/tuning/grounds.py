"""What an autotune document tells a sample: the times at the kernel's own cases, and which configs are certified."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..declaration import GPU, Case, Declaration, Pass
from ..declaration.choice import launchable, untuned
from ..identity import kernel
from .candidates import Candidate
from .outcome import OK, Outcome
from .probe import Certified
from .transfer import Model, Seen

Document = Mapping[str, Any]
"""Of the stage autotune or sample."""


def models(declaration: Declaration, gpu: GPU, document: Document) -> dict[str, Model]:
    """By pass the model that knows the document's trials."""
    return {
        direction: Model(list(_seen(direction, work, gpu, document))) for direction, work in declaration.passes.items()
    }


def _seen(direction: str, work: Pass, gpu: GPU, document: Document) -> Iterator[Seen]:
    by_case: dict[str, list[Mapping[str, Any]]] = {}
    for trial in document["trials"]:
        if trial["direction"] == direction and trial["median_us"]:
            by_case.setdefault(json.dumps([trial["dtype"], trial["sizes"]]), []).append(trial)
    for trials in by_case.values():
        case = Case.from_json(trials[0])
        default = untuned(work, case, gpu)
        times = {
            Candidate.of(one["variant"], one["config"]): one["median_us"]
            for one in trials
            if not launchable(work, one, case, gpu)[1]
        }
        if default is None:
            continue
        variant, config = default
        same = next((one for one in times if one.variant == variant.name and one.config == dict(config)), None)
        if same is not None:
            yield Seen(case.dtype, dict(case.sizes), same, times)


def certified(document: Document, identities: Mapping[str, str]) -> dict[Certified, Outcome]:
    """The certificates of the configs that won, of variants that are what they were."""
    stated = document.get("identities", {})
    found = {}
    for best in document["best"]:
        name = kernel.name_of(best["direction"], best["variant"])
        own = best.get("certificate")
        if own and kernel.find(stated, name) == kernel.find(identities, name):
            candidate = Candidate.of(best["variant"], best["config"])
            found[best["direction"], best["dtype"], candidate] = Outcome(OK, certificate=dict(own))
    return found
