"""The content of ``kernels/tuned/<gpu>.json``, which the kernels' public functions read, made from autotune documents.

The file is generated, in a form that diffs well: one entry a line, each with the identity of the variant that was
measured and the certificate of its config for its dtype.  What lacks a certificate is left out.
:mod:`atlas.declaration.choice` says how an entry is chosen for a call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..identity import kernel

if TYPE_CHECKING:
    from ..results.collection import Entry

KINDS = ("measured", "recorded")
"""Only what a GPU ran says which config is fast."""


def exportable(entries: Iterable[Entry]) -> list[Entry]:
    """The autotune documents that a real GPU wrote and that ended ok, sorted by kernel."""
    chosen = [e for e in entries if e.stage == "autotune" and e.kind in KINDS and e.document["status"] == "ok"]
    return sorted(chosen, key=lambda entry: entry.kernel or "")


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


_VERSIONS = ("torch", "triton", "cuda")

Document = Mapping[str, Any]
"""Of the stage autotune."""


def tuned(gpu: str, match: str, documents: Sequence[Document]) -> dict[str, Any]:
    """The content of ``kernels/tuned/<gpu>.json``; ``match`` is the pattern for the driver's device name."""
    return {
        "gpu": gpu,
        "match": match,
        "generated_by": f"python -m atlas export --gpu {gpu}",
        "software": _software(documents),
        "entries": [
            _row(document, best) for document in documents for best in document["best"] if best.get("certificate")
        ],
    }


def text(document: Mapping[str, Any]) -> str:
    """The file's text: one line for each key, and one for each entry."""
    head = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in document.items() if key != "entries"]
    rows = ",\n".join(f"  {json.dumps(row)}" for row in document["entries"])
    return "\n".join(["{", *head, ' "entries": [', rows, " ]", "}", ""])


def _row(document: Document, best: Mapping[str, Any]) -> dict[str, Any]:
    chosen = {name: best[name] for name in ("direction", "dtype", "sizes", "variant", "config")}
    return {
        "kernel": document["kernel"],
        **chosen,
        "identity": kernel.find(document.get("identities", {}), kernel.name_of(best["direction"], best["variant"])),
        "median_us": round(best["median_us"], 3),
        "certificate": best["certificate"],
    }


def _software(documents: Sequence[Document]) -> dict[str, str]:
    """Each version once, joined where the documents differ."""
    found = {name: [document["software"].get(name) for document in documents] for name in _VERSIONS}
    return {name: ", ".join(dict.fromkeys(filter(None, values))) for name, values in found.items() if any(values)}
