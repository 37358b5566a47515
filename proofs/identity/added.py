"""Variants that came since a document was made: where they take none of its cases, it would be made as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from atlas.identity import kernel
from atlas.results import documents, files, records

STAGES = ("build", "autotune", "sample", "benchmark")
"""Those whose documents hold every case that they are of.  Validation's has more than cases: it is due."""

Cases = list[list[Any]]
"""[dtype, sizes] of each."""

Ask = Callable[[str, str, Mapping[str, Cases]], Mapping[str, Cases]]
"""Of a kernel for a GPU, and of cases for each variant: those that it takes."""


def cases_of(document: Mapping[str, Any], direction: str) -> Cases:
    """Every case of a pass that any row of the document is of."""
    rows = (row for table in document.values() if isinstance(table, list) for row in table if isinstance(row, dict))
    found = {
        json.dumps([row["dtype"], row["sizes"]], sort_keys=True)
        for row in rows
        if row.get("direction") == direction and row.get("sizes")
    }
    return [json.loads(one) for one in sorted(found)]


def lacking(document: Mapping[str, Any], today: Mapping[str, str]) -> list[str]:
    """Today's variants that a document does not state."""
    return [name for name in today if "." in name and name not in document["identities"]]


def write(chosen: Iterable[str], today: Mapping[str, Mapping[str, str]], ask: Ask) -> dict[Path, list[str]]:
    """State new variants in the records of ``chosen``, as ``h200 softmax``, that have no case for them: by record."""
    found = {}
    for name in chosen:
        gpu, own = name.split()
        paths = [path for path in files.listed(Path("results", "recorded", gpu, own), "*") if
                 files.name_of(path) in STAGES]  # fmt: skip
        made = {path: documents.load(path) for path in paths}
        made = {path: document for path, document in made.items() if lacking(document, today[name])}
        asked: dict[str, Cases] = {}
        for document in made.values():
            for variant in lacking(document, today[name]):
                cases = asked.setdefault(variant, [])
                cases += [case for case in cases_of(document, variant.partition(".")[0]) if case not in cases]
        taken = ask(gpu, own, asked) if asked else {}
        for path, document in made.items():
            spared = [
                variant
                for variant in lacking(document, today[name])
                if not any(case in taken[variant] for case in cases_of(document, variant.partition(".")[0]))
            ]
            if spared:
                identities = document["identities"] | {variant: today[name][variant] for variant in spared}
                document |= {"identities": identities, "kernel_digest": kernel.digest(identities)}
                records.write(path.with_name(files.name_of(path) + files.PACKED), document)
                if path.suffix != ".xz":
                    path.unlink()
                found[path] = spared
    return found
