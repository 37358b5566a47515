"""A kernel's calls as its document of the stage beyond: timed once, they serve the proof and the record."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas.declaration import Case, Declaration
from atlas.host.runtime import sweep
from atlas.results import documents
from atlas.results.beyond import outcome, sampled
from atlas.stages import called, frame
from atlas.timing import PROTOCOL

if TYPE_CHECKING:
    from atlas.host.leases import Lease


def write(
    job: frame.Job, lease: Lease | None, declaration: Declaration, seed: int, calls: Sequence[Mapping[str, Any]]
) -> Path | None:
    """Write ``results/measured/<gpu>/<kernel>/beyond.json`` of a kernel's calls; None where there is nothing to write.

    Of each call ``providers`` are the rows and ``seconds`` what they took.  Cases that the tuner saw are left out.  As
    in the stage a kernel must have been validated there: a record of this document alone would be no record.
    """
    own = dataclasses.replace(job, stage="beyond", kernel=declaration.name)
    if not (own.folder / "validate.json").exists():
        return None
    tuned = {*sweep(declaration, own.gpu()), *sampled(own.results, own.kernel, own.gpu_name)}
    kept = [one for one in calls if one.get("providers") and Case.from_json(one["providers"][0]) not in tuned]
    if not kept:
        return None
    rows = [row for one in kept for row in one["providers"]]
    ended = {"status": "ok", "reason": ""} | outcome(rows)
    kind = "functional" if own.functional else "measured"
    document = frame.envelope(own, kind, ended["status"], ended["reason"], sum(one["seconds"] for one in kept))
    document |= {"protocol": PROTOCOL, "seed": seed, "rows": rows} | _calls(own, lease)
    documents.write(own.output, document)
    return own.output


def _calls(job: frame.Job, lease: Lease | None) -> dict[str, Any]:
    """What called kernels ran: no run has tuned them for this, so it is what was exported."""
    with (
        tempfile.TemporaryDirectory() as nothing,
        called.settled(dataclasses.replace(job, results=Path(nothing)), lease) as used,
    ):
        return used
