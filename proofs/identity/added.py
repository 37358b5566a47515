"""Variants that came since a document was made, or changed and had nothing there: where they take none of its cases, it
would be made as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from atlas.identity import kernel
from atlas.results import documents, files

from .records import replace

STAGES = ("build", "autotune", "sample", "benchmark")
"""Those whose documents hold every case that they are of.  Validation's has more than cases: it is due."""

Cases = list[list[Any]]
"""[dtype, sizes] of each."""

Ask = Callable[[str, str, Mapping[str, Cases]], Mapping[str, Cases]]
"""Of a kernel for a GPU, and of cases for each variant: those that it takes."""


def _rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    tables = (table for table in document.values() if isinstance(table, list))
    return [row for table in tables for row in table if isinstance(row, dict)]


def cases_of(document: Mapping[str, Any], direction: str) -> Cases:
    """Every case of a pass that any row of the document is of."""
    found = {
        json.dumps([row["dtype"], row["sizes"]], sort_keys=True)
        for row in _rows(document)
        if row.get("direction") == direction and row.get("sizes")
    }
    return [json.loads(one) for one in sorted(found)]


def lacking(document: Mapping[str, Any], today: Mapping[str, str]) -> list[str]:
    """Today's variants that a document does not state, or states otherwise, though none of them ran: at most a row says
    that they do not take a case."""
    rows, stated = [row for row in _rows(document) if row.get("dtype")], document["identities"]
    of_rows = {
        f"{row.get('direction')}.{row.get('variant') or row.get('provider')}"
        for row in rows
        if row.get("status") != "unsupported"
    }
    changed = (name for name in today if "." in name and stated.get(name) != today[name])
    return [name for name in changed if name not in stated or name not in of_rows]


def write(chosen: Iterable[str], today: Mapping[str, Mapping[str, str]], ask: Ask) -> dict[Path, list[str]]:
    """State such variants in the records of ``chosen``, as ``h200 softmax``, that have no case for them: by record."""
    found = {}
    for name in chosen:
        gpu, own = name.split()
        paths = [path for path in files.listed(Path("results", "recorded", gpu, own), "*") if
                 files.name_of(path) in STAGES]  # fmt: skip
        made = {path: documents.load(path) for path in paths}
        lacked = {
            path: {variant: cases_of(document, variant.partition(".")[0]) for variant in lacking(document, today[name])}
            for path, document in made.items()
        }
        asked: dict[str, Cases] = {}
        for variants in lacked.values():
            for variant, cases in variants.items():
                known = asked.setdefault(variant, [])
                known += [case for case in cases if case not in known]
        taken = ask(gpu, own, asked) if asked else {}
        for path, variants in lacked.items():
            spared = [
                variant for variant, cases in variants.items() if not any(case in taken[variant] for case in cases)
            ]
            if spared:
                identities = made[path]["identities"] | {variant: today[name][variant] for variant in spared}
                replace(path, made[path] | {"identities": identities, "kernel_digest": kernel.digest(identities)})
                found[path] = spared
    return found
