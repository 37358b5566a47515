"""Find and read the result documents there are: what every view (tables, report, tracking, verdict) is made from.

``results/measured/<gpu>/`` holds what the stages wrote here, ``results/recorded/<gpu>/`` what was committed; in both a
survey lies in the GPU's folder, proofs in ``<gpu>/proof/``, and everything else in ``<gpu>/<kernel>/``.  Records of
another host with the same GPU lie in ``results/recorded/<gpu>@<host>/``: views show it as a GPU of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import catalog
from ..identity import today
from ..identity.kernel import INPUTS, PEERS, PUBLIC, REFERENCES, WHOLE, find, name_of
from ..identity.needs import changed
from . import documents, files

_KERNEL_STAGES = tuple(stage for stage in documents.VERSIONS if stage not in ("survey", "predict", "prove", "cuda"))
"""Those of what was compiled or ran; what the cuda stage built shows in the peers of a benchmark."""


@dataclass(frozen=True)
class Entry:
    """One document.

    ``gpu`` is its folder's name: of a record of another host ``<gpu>@<host>``, where the document states ``<gpu>``.
    ``kernel`` is None for a survey and a proof.  ``kind`` is the document's own (``measured``, ``functional``,
    ``compiled``), or ``recorded`` for a measured document that lies under ``recorded/``.  ``changed`` names the
    kernel's identities that are no longer what this document is true of, ``stale`` says that there are such; a public
    function that changed makes a validation due again, and none of its figures stale.
    """

    gpu: str
    kernel: str | None
    stage: str
    document: Mapping[str, Any]
    kind: str
    path: Path
    stale: bool = False
    changed: tuple[str, ...] = ()

    def stale_row(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of the document is no longer true: its variant, its peer, or how its inputs are drawn changed.

        A row names its variant as ``variant``, or as ``provider`` of the kind ``variant``; without a name it is of the
        public function.
        """
        of_peers = row.get("provider_kind") == "peer"
        variant = row.get("variant", row.get("provider"))
        own = PEERS if of_peers else name_of(row["direction"], variant) if variant else PUBLIC
        whole = name_of(row["direction"], WHOLE)
        checked = {REFERENCES} if self.stage == "validate" else set()
        return not checked.union((own, whole, WHOLE, INPUTS)).isdisjoint(self.changed)

    def identity(self, direction: str, variant: str) -> str:
        """The identity of a variant as the document states it; of one that states none its kernel's digest."""
        stated = find(self.document.get("identities", {}), name_of(direction, variant))
        return stated or self.document["kernel_digest"]


def collect(results: Path, kernels: Collection[str] | None = None, gpus: Collection[str] | None = None) -> list[Entry]:
    """All documents under ``results``, or those of the named kernels and GPUs, sorted by GPU, kernel and stage.

    Of the same GPU, kernel and stage a measured document wins over a recorded one.  Surveys are left out by ``gpus``
    alone.  Raises :class:`~atlas.results.documents.DocumentError` for a document that is broken or in
    another's folder.
    """
    return _entries(((True, results / "recorded"), (False, results / "measured")), kernels, gpus)


def recorded(results: Path, gpu: str) -> list[Entry]:
    """A GPU's records of all hosts, as :func:`collect` gives them, whatever was measured since."""
    return _entries(((True, results / "recorded"),), None, [gpu])


def _entries(
    folders: Sequence[tuple[bool, Path]], kernels: Collection[str] | None, gpus: Collection[str] | None
) -> list[Entry]:
    found: dict[tuple[str, str | None, str], tuple[bool, Path]] = {}
    for recorded, folder in folders:
        for gpu, kernel, stage, path in _paths(folder):
            if _chosen(gpu, gpus) and (kernels is None or kernel is None or kernel in kernels):
                found[gpu, kernel, stage] = (recorded, path)
    ordered = sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or "", _order(item[0][2])))
    with today.held():
        return [_entry(*key, *place) for key, place in ordered]


def proofs(results: Path, gpus: Collection[str] | None = None) -> list[Entry]:
    """All proofs under ``results``, or those of the named GPUs, sorted by GPU and name; measured wins over recorded.

    Raises :class:`~atlas.results.documents.DocumentError` for a document that is broken or in
    another's folder.
    """
    found: dict[tuple[str, str], tuple[bool, Path]] = {}
    for recorded, folder in ((True, results / "recorded"), (False, results / "measured")):
        for path in files.listed(folder, "*/proof/*"):
            if _chosen(path.parent.parent.name, gpus):
                found[path.parent.parent.name, files.name_of(path)] = (recorded, path)
    return [_entry(gpu, None, "prove", *place) for (gpu, _), place in sorted(found.items())]


def predictions(
    results: Path, kernels: Collection[str] | None = None, gpus: Collection[str] | None = None
) -> list[Entry]:
    """What was predicted under ``results``, sorted by GPU and kernel; nothing of a kernel that the GPU itself timed.

    Of the named kernels and GPUs alone, if any are named.

    Raises :class:`~atlas.results.documents.DocumentError` for a document that is broken or in another's folder.
    """
    with today.held():
        return [
            _entry(path.parent.parent.name, path.parent.name, "predict", False, path)
            for path in sorted((results / "measured").glob("*/*/predict.json"))
            if (gpus is None or path.parent.parent.name in gpus)
            and (kernels is None or path.parent.name in kernels)
            and not files.listed(results, f"*/{path.parent.parent.name}/{path.parent.name}/benchmark")
        ]


def measured_and_recorded(
    results: Path, kernels: Collection[str] | None = None, gpus: Collection[str] | None = None
) -> list[tuple[Entry, Entry]]:
    """Benchmarks of which both a measured and a recorded document lie under ``results``, sorted by GPU and kernel.

    A record that was just copied from the measured document is no second run, and left out; so is the interpreter.
    """
    pairs = []
    for path in sorted((results / "measured").glob("*/*/benchmark.json")):
        gpu, kernel = path.parent.parent.name, path.parent.name
        older = files.found(results / "recorded" / gpu / kernel, "benchmark")
        chosen = (gpus is None or gpu in gpus) and (kernels is None or kernel in kernels)
        if not chosen or not older.exists():
            continue
        pair = _entry(gpu, kernel, "benchmark", False, path), _entry(gpu, kernel, "benchmark", True, older)
        dates = {entry.document["software"].get("date") for entry in pair}
        if all(entry.document["kind"] == "measured" for entry in pair) and len(dates) == 2:
            pairs.append(pair)
    return pairs


def calls(document: Mapping[str, Any]) -> dict[str, str]:
    """By kernel that a document's kernel calls, where its configs were from, and the beginning of their digest."""
    return {
        name: f"{used['configs']} ({used['sha256'][:12]})" if "sha256" in used else used["configs"]
        for name, used in document.get("calls", {}).items()
    }


def _order(stage: str) -> int:
    return list(documents.VERSIONS).index(stage)


def _chosen(folder: str, gpus: Collection[str] | None) -> bool:
    return gpus is None or folder in gpus or files.gpu_of(folder) in gpus


def _paths(folder: Path) -> Iterator[tuple[str, str | None, str, Path]]:
    for path in files.listed(folder, "*/survey"):
        yield path.parent.name, None, "survey", path
    for stage in _KERNEL_STAGES:
        for path in files.listed(folder, f"*/*/{stage}"):
            yield path.parent.parent.name, path.parent.name, stage, path


def _entry(gpu: str, name: str | None, stage: str, recorded: bool, path: Path) -> Entry:
    document = documents.read(path, stage)
    for key, wanted in (("gpu", files.gpu_of(gpu) if recorded else gpu), ("kernel", name)):
        if document[key] != wanted:
            raise documents.DocumentError(
                f"{path}: key {key!r} is {document[key]!r}, but the folder says {wanted!r}; move the file there"
            )
    kind = "recorded" if recorded and document["kind"] == "measured" else document["kind"]
    since = differences(document) if name is not None else ()
    return Entry(gpu, name, stage, document, kind, path, any(one != PUBLIC for one in since), since)


def differences(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The identities that a kernel's document states otherwise than they are today.

    Of a kernel whose file is gone, and of a document from before there were identities, it is the declaration.
    """
    stated, now = document.get("identities"), _today(document["kernel"])
    if stated is None or now is None:
        return (WHOLE,)
    return tuple(changed(document["stage"], stated, now))


def _today(name: str) -> Mapping[str, str] | None:
    """Today's identities; None for a kernel whose file is gone."""
    return catalog.identities(name) if name in catalog.names() else None
