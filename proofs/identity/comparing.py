"""Which identities of today's source are proved to be of the same code as those of the list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def variant_differences(before: Mapping[str, Any], after: Mapping[str, Any] | None) -> list[str]:
    """What of a variant is not as it was, in words; nothing where it is proved to be the same."""
    if after is None:
        return ["it is gone"]
    found = [] if before["space"] == after["space"] else ["its space, a default or what it supports"]
    for label, one in before["configs"].items():
        now = after["configs"].get(label)
        if now is None:
            found.append(f"{label}: is not launched")
        elif now != one:
            found.append(f"{label}: {'was compiled to something else' if not now.startswith('error') else now}")
    return found


def compiled_otherwise(before: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    """The variants of which a config, and nothing else, is not the one of the list: they may be compiled again."""
    return [
        name
        for name, own in answer["variants"].items()
        if (found := variant_differences(before["variants"][name], own))
        and all(one.endswith("was compiled to something else") for one in found)
    ]


def with_matches(before: Mapping[str, Any], answer: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, Any]:
    """The answer, with those configs ``again`` has that are as in the list.

    Triton's specialisation of warps makes one of several binaries of the same source, by chance: a source that can
    make the listed one is of the same code.
    """
    variants = {name: own | {"configs": dict(own["configs"])} for name, own in answer["variants"].items()}
    for name, own in again["variants"].items():
        listed = before["variants"][name]["configs"]
        variants[name]["configs"] |= {label: one for label, one in own["configs"].items() if listed.get(label) == one}
    return {**answer, "variants": variants}


def part_differences(before: list[str | None], identity: str, after: str | None) -> list[str]:
    """The same of an identity that is of no variant, given what it comes to in both sources."""
    then, fact = before
    if then == identity or (fact is not None and fact == after):
        return []
    return ["it cannot be told by running it"] if fact is None or after is None else ["it comes to something else"]


def proved(before: Mapping[str, Any], identities: Mapping[str, str], answer: Mapping[str, Any]) -> dict[str, list[str]]:
    """By name of every identity of the list what differs; an empty list says that today's is of the same code.

    ``answer`` is the worker's of the variants whose identity changed, and of the parts; see :mod:`.listing`.
    """
    found: dict[str, list[str]] = {}
    for name, own in before["variants"].items():
        same = own["identity"] == identities.get(name)
        found[name] = [] if same else variant_differences(own, answer["variants"].get(name))
    for name, own in before["parts"].items():
        now = identities.get(name)
        found[name] = ["it is gone"] if now is None else part_differences(own, now, answer["parts"].get(name))
    return found
