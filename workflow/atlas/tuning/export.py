"""The files that the kernels' public functions choose configs by, made from autotune documents.

Both kinds are generated, in a form that diffs well.  ``kernels/tuned/<gpu>.json`` holds the best config of each tuned
case, one entry a line, with the identity of the variant that was measured and the config's certificate for its dtype.
What lacks a certificate is left out, and a case whose default is of a variant that has come since.
``kernels/tuned/timings/<gpu>-<kernel>.json`` holds what those configs, and the defaults, took at the other cases.
:mod:`atlas.declaration.choice` says how a config is chosen for a call.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..identity import kernel

if TYPE_CHECKING:
    from ..declaration import GPU, Case, Declaration, Pass
    from ..results.collection import Entry

KINDS = ("measured", "recorded")
"""Only what a GPU ran says which config is fast."""


def exportable(entries: Iterable[Entry]) -> list[Entry]:
    """The autotune documents that a real GPU wrote and that ended ok, sorted by kernel."""
    chosen = [e for e in entries if e.stage == "autotune" and e.kind in KINDS and e.document["status"] == "ok"]
    return sorted(chosen, key=lambda entry: entry.kernel or "")


def sampled(entries: Iterable[Entry]) -> dict[tuple[str, str | None], Document]:
    """By GPU and kernel the sample documents that a real GPU wrote and that ended ok."""
    return {
        (e.gpu, e.kernel): e.document
        for e in entries
        if e.stage == "sample" and e.kind in KINDS and e.document["status"] == "ok"
    }


def current(document: Document, declaration: Declaration, gpu: GPU) -> Document:
    """The document without cases whose default is of a variant that was not there yet.

    Nobody timed that default beside what won there, which may well be slower.
    """
    from ..declaration import Case
    from ..declaration.choice import untuned

    known = document.get("identities", {})

    def stays(best: Mapping[str, Any]) -> bool:
        default = untuned(declaration.passes[best["direction"]], Case.from_json(best), gpu)
        return default is None or bool(kernel.find(known, kernel.name_of(best["direction"], default[0].name)))

    return {**document, "best": [best for best in document["best"] if stays(best)]}


def certified(document: Document) -> int:
    """How many of a document's best configs have a certificate."""
    return sum(bool(best.get("certificate")) for best in document["best"])


def left_out(entry: Entry, exported: Document) -> list[str]:
    """Which of a document's best configs are not ``exported``, as :func:`current` gives these, why and what to do."""
    total, having = len(entry.document["best"]), certified(entry.document)
    counts = {
        "have no certificate that their config validates for its dtype": total - having,
        "have by default a variant that has come since, and that nobody timed beside their config": (
            having - certified(exported)
        ),
    }
    again = f"run it again: python -m atlas autotune {entry.kernel} --gpu {entry.gpu}"
    return [f"{count} of {total} cases of {entry.kernel} {why}; {again}" for why, count in counts.items() if count]


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
        "entries": list(_rows(documents).values()),
    }


def _rows(documents: Sequence[Document]) -> dict[str, dict[str, Any]]:
    """By kernel, pass and case the entry of the first document that has one: a whole search's before a sample's."""
    found: dict[str, dict[str, Any]] = {}
    for document in documents:
        for best in document["best"]:
            if best.get("certificate"):
                named = [document["kernel"], best["direction"], best["dtype"], best["sizes"]]
                found.setdefault(json.dumps(named, sort_keys=True), _row(document, best))
    return found


def timed(declaration: Declaration, gpu: GPU, *documents: Document) -> dict[str, Any]:
    """The content of ``kernels/tuned/timings/<gpu>-<kernel>.json``; no ``passes`` where nothing can be said.

    ``documents`` are the kernel's of autotune, and of sample where there is one.

    Of each pass the configs that won a case, with a certificate, or are a case's default today, as far as the kernel
    still has them, and for which dtypes they have one.  A case whose default was not timed is left out: nothing there
    can be compared with it.
    """
    from ..declaration.timings import FORM, board

    passes = {direction: _pass(direction, work, gpu, documents) for direction, work in declaration.passes.items()}
    return {
        "form": FORM,
        "gpu": gpu.name,
        "kernel": declaration.name,
        "board": board(gpu),
        "generated_by": f"python -m atlas export --gpu {gpu.name}",
        "passes": {direction: found for direction, found in passes.items() if found["cases"]},
    }


def timings_text(document: Mapping[str, Any]) -> str:
    """The file's text: one line for each key, config and case."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in document.items() if key != "passes"]
    passes = []
    for direction, found in document["passes"].items():
        configs, cases = (",\n".join(f"   {json.dumps(one)}" for one in found[key]) for key in ("configs", "cases"))
        passes.append(f'  "{direction}": {{"configs": [\n{configs}\n  ], "cases": [\n{cases}\n  ]}}')
    return "\n".join(["{", *lines, ' "passes": {', ",\n".join(passes), " }", "}", ""])


def _pass(direction: str, work: Pass, gpu: GPU, documents: Sequence[Document]) -> dict[str, Any]:
    from ..declaration import Case
    from ..declaration.choice import launchable, untuned

    bests = [best for document in documents for best in document["best"]]
    winners = [best for best in bests if best["direction"] == direction and best.get("certificate")]
    won = [_config(best) for best in winners]
    by_case: dict[str, list[Mapping[str, Any]]] = {}
    for trial in itertools.chain(*(document["trials"] for document in documents)):
        if trial["direction"] == direction and trial["median_us"]:
            by_case.setdefault(json.dumps([trial["dtype"], trial["sizes"]]), []).append(trial)
    rows = []
    for trials in by_case.values():
        case = Case.from_json(trials[0])
        default = untuned(work, case, gpu)
        if default is not None:
            default = {"variant": default[0].name, "config": dict(default[1])}
            rows.append((case, default, [one for one in trials if not launchable(work, one, case, gpu)[1]]))
    rows = [row for row in rows if row[1] in map(_config, row[2])]
    configs: list[dict[str, Any]] = []
    for config in (*won, *(default for _, default, _ in rows)):
        if config not in configs and any(config in map(_config, trials) for *_, trials in rows):
            configs.append(config)
    cases = [_times(*row, configs) for row in rows]
    dtypes = [sorted({best["dtype"] for best in winners if _config(best) == config}) for config in configs]
    return {"configs": [one | {"certified": of} for one, of in zip(configs, dtypes, strict=True)], "cases": cases}


def _config(one: Mapping[str, Any]) -> dict[str, Any]:
    return {"variant": one["variant"], "config": one["config"]}


def _times(
    case: Case, default: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], configs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    found = [next((round(t["median_us"], 3) for t in trials if _config(t) == config), None) for config in configs]
    return case.to_json() | {"default": configs.index(default), "us": found}


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
