"""From autotune documents to ``kernels/tuned/<gpu>.json``, which the kernels' public functions read.

The file is generated, in a form that diffs well: one entry a line, each with the digest of the kernel file it was
measured with and the certificate of its config for its dtype.  What lacks a certificate is left out.
:mod:`atlas.declaration.choice` says how an entry is chosen for a call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..collection import Entry

KINDS = ("measured", "recorded")
"""Only what a GPU ran says which config is fast."""

_VERSIONS = ("torch", "triton", "cuda")


def exportable(entries: Iterable[Entry]) -> list[Entry]:
    """The autotune documents that a real GPU wrote and that ended ok, sorted by kernel."""
    chosen = [e for e in entries if e.stage == "autotune" and e.kind in KINDS and e.document["status"] == "ok"]
    return sorted(chosen, key=lambda entry: entry.kernel or "")


def tuned(gpu: str, match: str, entries: Sequence[Entry]) -> dict[str, Any]:
    """The content of ``kernels/tuned/<gpu>.json``; ``match`` is the pattern for the driver's device name."""
    return {
        "gpu": gpu,
        "match": match,
        "generated_by": f"python -m atlas export --gpu {gpu}",
        "software": _software(entries),
        "entries": [
            _row(entry, best) for entry in entries for best in entry.document["best"] if best.get("certificate")
        ],
    }


def left_out(entry: Entry) -> str:
    """Which of a document's best configs are not exported, why and what to do; ``""`` where all are."""
    bests = entry.document["best"]
    count = sum(not best.get("certificate") for best in bests)
    if not count:
        return ""
    return (
        f"{count} of {len(bests)} cases of {entry.kernel} have no certificate that their config validates for its "
        f"dtype; run it again: python -m atlas autotune {entry.kernel} --gpu {entry.gpu}"
    )


def text(document: Mapping[str, Any]) -> str:
    """The file's text: one line for each key, and one for each entry."""
    head = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in document.items() if key != "entries"]
    rows = ",\n".join(f"  {json.dumps(row)}" for row in document["entries"])
    return "\n".join(["{", *head, ' "entries": [', rows, " ]", "}", ""])


def _row(entry: Entry, best: Mapping[str, Any]) -> dict[str, Any]:
    chosen = {name: best[name] for name in ("direction", "dtype", "sizes", "variant", "config")}
    return {
        "kernel": entry.kernel,
        **chosen,
        "kernel_digest": entry.document["kernel_digest"],
        "median_us": round(best["median_us"], 3),
        "certificate": best["certificate"],
    }


def _software(entries: Sequence[Entry]) -> dict[str, str]:
    """Each version once, joined where the documents differ."""
    found = {name: [entry.document["software"].get(name) for entry in entries] for name in _VERSIONS}
    return {name: ", ".join(dict.fromkeys(filter(None, values))) for name, values in found.items() if any(values)}
