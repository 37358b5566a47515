"""Read ``kernels/tuned/<gpu>.json``, or what stands in its place: the entries of the right form, and what is amiss.

Written by hand rather than as a JSON Schema, since it runs inside a user's model: no library is imported for it, and
the 200 kB of the largest file take ten milliseconds, once for the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..reading import strict

MOST_ENTRIES = 100_000

_PASSES = ("forward", "backward")


def read(path: Path) -> tuple[str, list[dict[str, Any]], list[str]]:
    """The pattern of the device's name, the entries of the right form, and a sentence for each fault with its place.

    With a fault of the file itself there is no entry; with one of its pattern none that could be used.
    """
    try:
        document = strict.load_json(path)
    except FileNotFoundError:
        return "", [], ["no such file"]
    except strict.Unreadable as error:
        return "", [], [str(error)]
    if not isinstance(document, Mapping):
        return "", [], [f"is {strict.shown(document)}, no mapping with the keys 'match' and 'entries'"]
    pattern, entries = document.get("match"), document.get("entries")
    if said := strict.pattern_trouble(pattern):
        return "", [], [f"key 'match': {strict.shown(pattern)} {said}"]
    if not isinstance(entries, list) or len(entries) > MOST_ENTRIES:
        return "", [], [f"key 'entries': {strict.shown(entries)} is no list of at most {MOST_ENTRIES} entries"]
    told = [(entry, _fault(entry)) for entry in entries]
    faults = [f"key 'entries.{place}{fault}" for place, (_, fault) in enumerate(told) if fault]
    return pattern, [entry for entry, fault in told if not fault], faults


def _fault(entry: Any) -> str:
    """What is wrong with an entry, from its place on; ``""`` for one of the right form."""
    if not isinstance(entry, dict):
        return f"': {strict.shown(entry)} is no entry"
    for key, (fits, wanted) in _FORM.items():
        if key not in entry:
            return f"': key {key!r} is missing"
        if not fits(entry[key]):
            return f".{key}': {strict.shown(entry[key])} is not {wanted}"
    for key, (fits, wanted) in _OPTIONAL.items():
        if entry.get(key) is not None and not fits(entry[key]):
            return f".{key}': {strict.shown(entry[key])} is not {wanted}"
    return ""


def _word(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 200


def _number(value: Any) -> bool:
    return type(value) in (int, float) and value > 0


def _size(value: Any) -> bool:
    return type(value) is bool or _word(value) or (type(value) in (int, float) and value >= 0)


def _setting(value: Any) -> bool:
    return type(value) in (bool, int, float) or _word(value)


def _mapping(of: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(of, value.values()))


def _certificate(value: Any) -> bool:
    counts = [value.get(key, 1) for key in ("cases", "checks", "seeds")] if isinstance(value, dict) and value else [0]
    return all(type(count) is int and count > 0 for count in counts)


_FORM = {
    "kernel": (_word, "a kernel's name"),
    "direction": (lambda value: value in _PASSES, "forward or backward"),
    "dtype": (_word, "a dtype's name"),
    "sizes": (_mapping(_size), "a mapping of sizes: numbers of 0 or more, true, false or words"),
    "variant": (_word, "a variant's name"),
    "config": (_mapping(_setting), "a mapping of numbers, true, false or words"),
}

_OPTIONAL = {
    "certificate": (_certificate, "a certificate, with counts of 1 or more"),
    "median_us": (_number, "a time in microseconds"),
    "kernel_digest": (_word, "a digest"),
}
