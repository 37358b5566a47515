"""Are a GPU's records of today's code, and of which host, versions, clocks and commits?  A standing for each host."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import catalog
from ..identity import today
from ..identity.kernel import PUBLIC, WHOLE
from ..identity.needs import in_words
from . import collection, files, records
from .collection import Entry
from .summary import counted, listed


@dataclass(frozen=True)
class Standing:
    """What one host recorded of one GPU.

    ``gpu`` is its folder's name, ``facts`` are sentences on device, versions, commits and dates.  ``fresh`` and
    ``stale`` are kernels; of a stale one a sentence on what changed since.  ``due`` are those, fresh or stale, of which
    the public function changed, so that their validation is due again; ``called`` those whose calls beyond the tuned
    cases were of another public function.  ``missing`` are kernels without a record.
    """

    gpu: str
    documents: int
    size: int
    facts: tuple[str, ...]
    fresh: tuple[str, ...]
    stale: dict[str, str]
    due: tuple[str, ...]
    called: tuple[str, ...]
    missing: tuple[str, ...]


def standings(results: Path, gpu: str) -> list[Standing]:
    """A standing for each host that recorded a GPU, the first host's first; none without records.

    All documents are read whole.  Raises :class:`~atlas.results.documents.DocumentError` for one that is broken.
    """
    folders = files.hosts(results / "recorded", gpu)
    if not folders:
        return []
    with today.held():
        entries = collection.recorded(results, gpu)
        return [
            _standing(folder, [entry for entry in entries if entry.gpu == folder.name])
            for folder in folders
            if any(entry.gpu == folder.name for entry in entries)
        ]


def _standing(folder: Path, entries: Sequence[Entry]) -> Standing:
    by_kernel: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.kernel is not None:
            by_kernel.setdefault(entry.kernel, []).append(entry)
    stale = {kernel: _since(own) for kernel, own in by_kernel.items() if any(entry.stale for entry in own)}
    fresh = {kernel: own for kernel, own in by_kernel.items() if kernel not in stale}
    return Standing(
        gpu=folder.name,
        documents=len(entries),
        size=records.size(folder),
        facts=tuple(_facts(entries)),
        fresh=tuple(fresh),
        stale=stale,
        due=_of_another_public_function(by_kernel, "validate"),
        called=_of_another_public_function(by_kernel, "beyond"),
        missing=tuple(kernel for kernel in catalog.names() if kernel not in by_kernel),
    )


def _of_another_public_function(by_kernel: Mapping[str, Sequence[Entry]], stage: str) -> tuple[str, ...]:
    """The kernels whose document of a stage is."""
    return tuple(
        kernel
        for kernel, own in by_kernel.items()
        if any(entry.stage == stage and PUBLIC in entry.changed for entry in own)
    )


def _since(entries: Sequence[Entry]) -> str:
    """``changed: forward `one_pass`, the peers; new: forward `online` (build, benchmark)``."""
    stale = [entry for entry in entries if entry.stale]
    kernel = stale[0].kernel
    if kernel not in catalog.names():
        return "the kernel is gone"
    now = catalog.identities(kernel)
    stated = {name: one for entry in stale for name, one in entry.document.get("identities", {}).items()}
    names = dict.fromkeys(name for entry in stale for name in entry.changed if name not in (PUBLIC, WHOLE))
    how: dict[str, list[str]] = {}
    for name in names:
        kind = "gone" if name not in now else "new" if "." in name and name not in stated else "changed"
        how.setdefault(kind, []).append(in_words(name))
    said = [f"{kind}: {', '.join(words)}" for kind, words in sorted(how.items())] or ["its code changed"]
    return f"{'; '.join(said)} ({', '.join(dict.fromkeys(entry.stage for entry in stale))})"


_DEVICE = {"driver": "driver {}", "power_cap_w": "{:g} W", "max_sm_clock_mhz": "SM up to {:g} MHz",
           "max_memory_clock_mhz": "memory {:g} MHz"}  # fmt: skip
_SOFTWARE = {"torch": "torch {}", "triton": "Triton {}", "python": "Python {}", "cuda": "CUDA {}", "hip": "HIP {}"}


def _facts(entries: Sequence[Entry]) -> Iterator[str]:
    devices = [entry.document["device"] for entry in entries if entry.document["device"]]
    softwares = [entry.document["software"] for entry in entries]
    schemas = sorted({entry.document["schema_version"] for entry in entries})
    names = _each(devices, "device_name", "{}")
    told = [_each(devices, key, words) for key, words in _DEVICE.items()]
    clocks = [
        row["sm_clock_mhz"]
        for entry in entries
        if entry.stage == "benchmark"
        for row in entry.document["rows"]
        if row.get("sm_clock_mhz")
    ]
    told += [f"timed at {statistics.median(clocks):.0f} MHz in the median"] if clocks else []
    yield ", ".join(filter(None, [names, *told]))
    yield ", ".join(filter(None, [_each(softwares, key, words) for key, words in _SOFTWARE.items()]))
    commits = list(dict.fromkeys(one["commit"] for one in softwares if one.get("commit")))
    unsaid = sum(not one.get("commit") for one in softwares)
    said = [listed(commits)] if commits else []
    said += [f"{counted(unsaid, 'document')} from hosts without git"] if unsaid else []
    yield f"code: {'; '.join(said)}; schema {', '.join(map(str, schemas))}"
    dates = sorted(one["date"][:10] for one in softwares if one.get("date"))
    if dates:
        yield f"measured {dates[0]}" + (f" to {dates[-1]}" if dates[-1] != dates[0] else "")


def _each(facts: Sequence[dict[str, object]], key: str, words: str) -> str:
    """What all say of a key, each once: ``driver 580.1 or 581.2``."""
    values = dict.fromkeys(one[key] for one in facts if one.get(key) is not None)
    return " or ".join(words.format(value) for value in values)


def lines(one: Standing) -> Iterator[str]:
    """What there is to say of a standing."""
    host = one.gpu.partition(files.HOST)[2]
    size = f"{one.size / 2**20:.2f} of {records.MOST_BYTES / 2**20:g} MiB"
    named = f"host {host}" if host else "first host"
    yield f"{one.gpu} ({named}): {counted(one.documents, 'document')}, {size}"
    for fact in filter(None, one.facts):
        yield f"  {fact}"
    yield f"  fresh: {', '.join(one.fresh) or 'none'}"
    for kernel, since in one.stale.items():
        yield f"  stale: {kernel}: {since}"
    if one.due:
        yield f"  validation due again, its public function changed: {', '.join(one.due)}"
    if one.called:
        yield f"  calls beyond the tuned cases were of another public function: {', '.join(one.called)}"
    if one.missing:
        yield f"  no record: {', '.join(one.missing)}"
