"""The variants of a kernel as rungs of a ladder: which one was made from which, by what change."""

from __future__ import annotations

from typing import Any

from ..declaration import Declaration


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
