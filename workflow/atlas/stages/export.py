"""Write the tuned configs of each GPU, and what was timed, where the kernels' public functions find them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import catalog
from ..errors import AtlasError
from ..host import gpus
from ..identity.needs import in_words
from ..reading.config import GPUS_FILE, load_gpus
from ..results import collection, documents


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``python -m atlas export``."""
    parser.add_argument("--gpu", help="a block of gpus.yaml (default: every GPU that was tuned)")
    parser.add_argument("--gpus-file", type=Path, default=GPUS_FILE, help="default: config/gpus.yaml")
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")


def run(arguments: argparse.Namespace) -> None:
    """Write ``kernels/tuned/<gpu>.json`` and ``kernels/tuned/timings/`` from measured or recorded autotune documents.

    Says what went into them.
    What has no certificate is left out and named; AtlasError where that is everything.
    """
    from ..declaration.choice import TUNED, timings_file
    from ..tuning.export import certified, current, exportable, left_out, sampled, text, timed, timings_text, tuned

    blocks = load_gpus(arguments.gpus_file)
    names = gpus.names_of([arguments.gpu] if arguments.gpu else "all", blocks, "--gpu", "command line")
    found = [entry for entry in collection.collect(arguments.results, gpus=names) if entry.gpu in names]
    entries, samples = exportable(found), sampled(found)
    if not entries:
        which = f"GPU {arguments.gpu!r}" if arguments.gpu else "any GPU"
        raise AtlasError(
            f"{arguments.results}: no autotune document of status ok that {which} measured; "
            "run the autotune stage on the GPU, or take its records from git"
        )
    sources = {
        (entry.gpu, entry.kernel): [entry.document, *filter(None, [samples.get((entry.gpu, entry.kernel))])]
        for entry in entries
    }
    devices = {name: gpus.gpu(name, blocks[name]) for name in names}
    kept = {
        (gpu, kernel): [current(document, catalog.load(kernel), devices[gpu]) for document in documents]
        for (gpu, kernel), documents in sources.items()
    }
    files = {
        name: tuned(name, blocks[name]["match"], own)
        for name in names
        if (own := [document for (gpu, _), documents in kept.items() if gpu == name for document in documents])
    }
    lacking = [said for entry in entries for said in left_out(entry, kept[entry.gpu, entry.kernel][0])]
    if not any(file["entries"] for file in files.values()):
        raise AtlasError(f"{arguments.results}: nothing can be exported: {'; '.join(lacking)}")
    for name, file in files.items():
        path = TUNED / f"{name}.json"
        if file["entries"]:
            documents.write_text(path, text(file))
            for entry in entries:
                if entry.gpu == name:
                    content = timed(catalog.load(entry.kernel), devices[name], *sources[name, entry.kernel])
                    documents.write_text(timings_file(name, entry.kernel), timings_text(content))
            described = [
                _described(entry, count, samples.get((name, entry.kernel)))
                for entry in entries
                if entry.gpu == name and (count := certified(kept[name, entry.kernel][0]))
            ]
            print(f"{path.parent.parent.name}/{path.parent.name}/{path.name}: {', '.join(described)}")
    for said in lacking:
        print(f"left out: {said}", file=sys.stderr)


def _described(entry: collection.Entry, count: int, sample: Mapping[str, Any] | None) -> str:
    cases = f"{count} cases"
    if sample is not None:
        drawn = {(trial["direction"], trial["dtype"], str(trial["sizes"])) for trial in sample["trials"]}
        cases += f" and {len(drawn)} drawn ones"
    changed = f"; changed since: {', '.join(map(in_words, entry.changed))}: tune it again" if entry.stale else ""
    return f"{entry.kernel} ({cases}, {entry.kind}{changed})"
