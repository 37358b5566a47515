"""Which identities of a kernel a stage's document depends on, and what differs between two sets of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from . import kernel

_MEASURED = (kernel.INPUTS, kernel.SWEEP)

NEEDS: Mapping[str, tuple[str, ...]] = {
    "build": _MEASURED,
    "validate": (*_MEASURED, kernel.CASES, kernel.REFERENCES, kernel.PUBLIC),
    "autotune": _MEASURED,
    "sample": (kernel.INPUTS,),
    "benchmark": (*_MEASURED, kernel.COSTS, kernel.PEERS),
    "beyond": (kernel.INPUTS, kernel.PEERS, kernel.PUBLIC, kernel.CHOICE),
    "profile": (*_MEASURED, kernel.PEERS),
    "energy": (*_MEASURED, kernel.PEERS),
    "predict": (*_MEASURED, kernel.COSTS),
}
"""Beside the variants, which every stage of a kernel depends on.  A winner's certificate is of the cases and references
that it was certified with, and is not due again when a case is added: validation is."""


def needed(stage: str, identities: Mapping[str, str]) -> dict[str, str]:
    """Those of a kernel's identities that a document of ``stage`` depends on; none for a stage without a kernel."""
    if stage not in NEEDS:
        return {}
    return {name: one for name, one in identities.items() if name not in kernel.PARTS or name in NEEDS[stage]}


def changed(stage: str, stated: Mapping[str, str], today: Mapping[str, str]) -> list[str]:
    """The names of the identities that a document states otherwise than ``today``'s are, or that one of both lacks."""
    now = needed(stage, today)
    then = {name: one for name, one in stated.items() if name not in kernel.PARTS or name in NEEDS.get(stage, ())}
    names = [name for name in dict.fromkeys((*now, *then)) if now.get(name) != then.get(name)]
    return sorted(names, key=lambda name: name in kernel.PARTS)  # variants first


_PARTS_IN_WORDS = {
    kernel.SWEEP: "the cases of the sweep",
    kernel.CASES: "the cases of validation",
    kernel.PUBLIC: "the public function",
    kernel.CHOICE: "how configs are weighed",
}


def in_words(name: str) -> str:
    """``forward.online`` as ``forward `online```; the others as they are."""
    direction, _, variant = name.partition(".")
    if name == kernel.WHOLE:
        return "its code"
    if not variant:
        return _PARTS_IN_WORDS.get(name, f"the {name}")
    return f"{direction} pass" if variant == kernel.WHOLE else f"{direction} `{variant}`"


def sentence(names: Iterable[str], stated: Mapping[str, str], today: Mapping[str, str]) -> str:
    """``forward `online` changed, backward `team` is new``."""
    said = []
    for name in names:
        how = "is gone" if name not in today else "is new" if name not in stated else "changed"
        said.append(f"{in_words(name)} {how if '.' in name else 'changed'}")
    return ", ".join(said)
