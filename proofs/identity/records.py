"""Writing today's identities into records and tuned configs that are proved to be of the same code."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atlas.identity import kernel
from atlas.identity.needs import needed
from atlas.results import documents, files, packed, records
from atlas.tuning.export import text as tuned_text

_KEYS = ("identities", "kernel_digest", "identity", "code")

Stated = Mapping[tuple[str, str], Mapping[str, str]]
"""By GPU and kernel the identities that a record of the listed source may state: today's where proved, else its own."""


def at(commit: str, folder: Path, name: str) -> dict[str, Any] | None:
    """A recorded document as it was in a commit, in whichever form; None where it was not there."""
    for form in (files.PACKED, files.PLAIN):
        path = (folder / f"{name}{form}").as_posix()
        done = subprocess.run(["git", "show", f"{commit}:{path}"], capture_output=True, check=False)
        if done.returncode == 0:
            return packed.unpack(done.stdout) if form == files.PACKED else json.loads(done.stdout)
    return None


def write_records(commits: Mapping[tuple[str, str], str], earlier: Stated, stated: Stated) -> dict[str, list[Path]]:
    """State identities in the records of these kernels, of which the list is of ``commits``.

    Gives those ``written``, ``unchanged``, and ``other`` that were measured since: what they launch may not be listed.
    An identity stays as it is stated that is not the one of ``earlier``, the list's own, as of a record of another
    source; and so does what the list does not name, a variant of which nothing was timed.
    """
    found: dict[str, list[Path]] = {"written": [], "unchanged": [], "other": []}
    for path in files.listed(Path("results", "recorded"), "*/*/*"):
        document = documents.load(path)
        key = (document["gpu"], document.get("kernel"))
        if key not in commits:
            continue
        before = at(commits[key], path.parent, files.name_of(path)) or {}
        if _measured(before) != _measured(document):
            found["other"].append(path)
            continue
        told, then = document["identities"], earlier[key]
        listed = needed(document["stage"], stated[key])
        own = told | {one: identity for one, identity in listed.items() if told.get(one, then[one]) == then[one]}
        made: dict[str, Any] = {}
        for field, value in before.items():
            if field not in ("identities", "identity"):
                made[field] = value
            if field == "kernel_digest":
                made |= {"kernel_digest": kernel.digest(own), "identities": own}
        found["unchanged" if made == document else "written"].append(path)
        if made != document:
            replace(path, made)
    return found


def replace(path: Path, document: dict[str, Any]) -> None:
    """Write a record, packed, in the place of the file that holds it in whichever form."""
    records.write(path.with_name(files.name_of(path) + files.PACKED), document)
    if path.suffix != ".xz":
        path.unlink()


def write_tuned(before: Stated, stated: Stated) -> dict[str, int]:
    """The same for ``kernels/tuned/<gpu>.json``, for entries that state what it had ``before``; how many do now."""
    found = {}
    for path in sorted(Path("kernels", "tuned").glob("*.json")):
        document = json.loads(path.read_text())
        entries = []
        for entry in document["entries"]:
            key, name = (document["gpu"], entry["kernel"]), kernel.name_of(entry["direction"], entry["variant"])
            if key in stated and entry["identity"] == before[key].get(name):
                entry = entry | {"identity": stated[key][name]}
            entries.append(entry)
        path.write_text(tuned_text(document | {"entries": entries}))
        found[str(path)] = sum(
            entry["identity"] == stated.get((document["gpu"], entry["kernel"]), {}).get(
                kernel.name_of(entry["direction"], entry["variant"]))
            for entry in entries
        )  # fmt: skip
    return found


def _measured(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in _KEYS}
