"""The configs of the kernels that a kernel calls: those that the same run tuned, also in processes a stage starts.

The backward pass of matmul_epilogue calls ``matmul``, which takes its config from ``kernels/tuned``: what was exported
last, of another day, or for a new GPU nothing.  A stage that times such a kernel hands it the configs of the called
kernel's autotune document instead, where there is one, and its own document says what was used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import catalog
from ..results import collection, documents
from ..tuning.export import text, tuned

if TYPE_CHECKING:
    from ..host.leases import Lease
    from . import frame

VARIABLE = "KERNEL_ATLAS_TUNED"
""":data:`atlas.declaration.choice.VARIABLE`, which cannot be had without importing torch."""

TUNED_HERE = "autotune of this run"
DEFAULTS = "defaults"


@contextlib.contextmanager
def settled(job: frame.Job, lease: Lease | None) -> Iterator[dict[str, Any]]:
    """Inside, here and in processes that are started, calls of other kernels run the configs that were tuned here.

    Gives the document's field ``calls``, and no field for a kernel that calls none.  Enter it before anything is
    called: a process reads its configs once.  Raises
    :class:`~atlas.results.documents.DocumentError` for a broken document.
    """
    called = catalog.called(job.kernel)
    if not called:
        yield {}
        return
    own = tuned(job.gpu_name, job.block.get("match", ""), [found for name in called if (found := _document(job, name))])
    before = os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory(prefix="atlas-tuned.") as folder:
        path = Path(folder, f"{job.gpu_name}.json")
        path.write_text(text(own))
        os.environ[VARIABLE] = str(path)
        try:
            device_name = lease.device_name if lease else ""
            yield {"calls": {name: _used(name, own["entries"], device_name) for name in called}}
        finally:
            del os.environ[VARIABLE]
            if before is not None:
                os.environ[VARIABLE] = before


def digests(field: Mapping[str, Any]) -> dict[str, str | None]:
    """By called kernel the digest of its configs, None for the defaults, of what :func:`settled` gave."""
    return {name: used.get("sha256") for name, used in field.get("calls", {}).items()}


def _document(job: frame.Job, name: str) -> dict[str, Any] | None:
    """The called kernel's autotune document of this GPU; None where none is ok and of today's variants."""
    path = job.folder.parent / name / "autotune.json"
    if job.functional or not path.exists():
        return None
    document = documents.read(path, "autotune")
    fits = document["status"] == "ok" and not collection.differences(document)
    return document if fits else None


def _used(name: str, own: Sequence[Mapping[str, Any]], device_name: str) -> dict[str, str]:
    """Where the configs are from, as :mod:`atlas.declaration.choice` finds them, and their digest."""
    if rows := _of(name, own):
        return {"configs": TUNED_HERE, "sha256": _digest(rows)}
    if device_name:
        from ..declaration.choice import exported

        file, entries = exported(device_name)
        if rows := _of(name, entries):
            return {"configs": f"kernels/tuned/{file}", "sha256": _digest(rows)}
    return {"configs": DEFAULTS}


def _of(name: str, entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [entry for entry in entries if entry["kernel"] == name and entry.get("certificate")]


def _digest(rows: Sequence[Mapping[str, Any]]) -> str:
    """Equal for a document's configs and for what was exported of them."""
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
