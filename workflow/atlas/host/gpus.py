"""The GPUs of ``config/gpus.yaml``: their blocks, and where each one is.  Imports no torch until a GPU is built."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import AtlasError
from ..reading import strict
from ..results import files
from . import devices, environment, slurm

if TYPE_CHECKING:
    from ..declaration import GPU

HERE, CLUSTER, RECORDED, ABSENT = "here", "cluster", "recorded", "absent"

PLACES_VARIABLE = "KERNEL_ATLAS_PLACES"
"""Where the head process leaves its answer for the jobs, which parse the workflow again: ``h200=here:1f0c…,t4=absent``.

Behind the colon stands :attr:`Place.state`.
"""

LIMIT_VARIABLE = "KERNEL_ATLAS_GPUS"
"""Most devices of this host that may be leased at a time for one of them to be lent as a spare; 1 if not set."""


@dataclass(frozen=True)
class Place:
    """Where one GPU is, and what the driver calls it there."""

    where: str
    device_name: str = ""
    count: int = 0
    """How many of it this host shows."""
    state: str = ""
    """Digest of what the figures of a GPU of this host hold for: its name, driver and power cap; else empty."""
    partition: str = ""
    """SLURM's partition that has it, as the head process found it."""

    @property
    def reachable(self) -> bool:
        """True where its kernels can run now: on this host or through the cluster."""
        return self.where in (HERE, CLUSTER)


def matches(block: Mapping[str, Any], device_name: str) -> bool:
    """Whether the driver's name is that of the block's GPU.

    A MIG instance bears its board's name with more behind it, and is another GPU: its block's pattern says ``MIG``.
    """
    pattern = block.get("match")
    if pattern is None or (" MIG " in device_name and "MIG" not in pattern):
        return False
    return strict.pattern_found(pattern, device_name)


def names_of(selection: str | list[str], blocks: Mapping[str, Any], key: str, where: str) -> list[str]:
    """The GPU names a config key selects (``"all"`` or a list); :class:`AtlasError` for one with no block."""
    if selection == "all":
        return list(blocks)
    for name in selection:
        if name not in blocks:
            near = difflib.get_close_matches(name, blocks, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(blocks)}"
            raise AtlasError(f"{where}: key {key!r}: unknown GPU {name!r}: no such block in gpus.yaml; {hint}")
    return list(selection)


def locate(
    blocks: Mapping[str, Mapping[str, Any]],
    names: Collection[str],
    required: Collection[str],
    recorded: Path,
    cluster: bool,
    partitions: Sequence[slurm.Partition] | None = None,
) -> dict[str, Place]:
    """Where each named GPU is; :class:`AtlasError` if a required one cannot be reached.

    ``recorded`` is the folder of committed records; ``cluster`` says that the executor places jobs on other hosts;
    ``partitions`` are SLURM's, where it does.
    """
    if PLACES_VARIABLE in os.environ:
        settled = dict(item.split("=") for item in os.environ[PLACES_VARIABLE].split(",") if item)
        if set(names) <= set(settled):
            answers = {name: settled[name].partition(":") for name in names}
            return {name: Place(where, state=state) for name, (where, _, state) in answers.items()}
    shown = [] if cluster else devices.visible()
    places = {name: _place(name, blocks[name], shown, recorded, cluster, partitions) for name in names}
    for name in required:
        if name not in places or not places[name].reachable:
            seen = ", ".join(device.name for device in shown) or "no GPU"
            raise AtlasError(
                f"GPU {name!r} is required but no partition has what its block's 'cluster' asks for, or it has none"
                if cluster
                else f"GPU {name!r} is required but not here: no device matches {blocks[name]['match']!r}; "
                f"this host shows {seen}; take it out of the key 'require', or run where it is"
            )
    return places


def _place(
    name: str,
    block: Mapping[str, Any],
    shown: Sequence[devices.Device],
    recorded: Path,
    cluster: bool,
    partitions: Sequence[slurm.Partition] | None,
) -> Place:
    """A host from which jobs are placed elsewhere runs none, whatever GPU it has itself."""
    if functional(block):
        return Place(HERE, "Triton interpreter")
    here = [device for device in shown if matches(block, device.name)]
    if here:
        return Place(HERE, here[0].name, len(here), _state(here))
    if cluster and block.get("cluster"):
        partition = "" if partitions is None else slurm.partition_of(block["cluster"], partitions)
        if partition is not None:
            return Place(CLUSTER, partition=partition)
    return Place(RECORDED if files.listed(recorded / name, "**/*") else ABSENT)


def _state(here: Sequence[devices.Device]) -> str:
    """The same for one device and for eight of its kind, and whichever of them a job gets."""
    told = [environment.device(device.uuid) for device in here]
    kinds = {
        (device.name, facts.get("driver"), facts.get("power_cap_w")) for device, facts in zip(here, told, strict=True)
    }
    return hashlib.sha256(repr(sorted(kinds, key=repr)).encode()).hexdigest()[:12]


def publish(places: Mapping[str, Place]) -> None:
    """Leave the answer in the environment, so that jobs which parse the workflow again get the same."""
    os.environ[PLACES_VARIABLE] = ",".join(
        f"{name}={place.where}" + (f":{place.state}" if place.state else "") for name, place in places.items()
    )


def functional(block: Mapping[str, Any]) -> bool:
    """True for a block that is run by the interpreter."""
    return "cpu" in block["target"]


def gpu(name: str, block: Mapping[str, Any]) -> GPU:
    """The :class:`~atlas.declaration.GPU` that a block describes."""
    import dataclasses

    from ..declaration import GPU
    from ..declaration.hardware import INTERPRETER

    ((backend, arch),) = block["target"].items()
    if backend == "cpu":
        return dataclasses.replace(INTERPRETER, name=name)
    return GPU(
        name=name,
        backend=backend,
        arch=arch,
        sms=block["sms"],
        shared_bytes=int(block["shared_memory_kib"] * 1024),
        memory_bytes=int(block["memory_gib"] * 2**30),
        l2_bytes=int(block["l2_mib"] * 2**20),
    )


_MEMORY_SHARE = 0.1
"""Of its memory a board may keep so much to itself, as a T4 does for error correction."""

_SIZES = {"memory_gib": ("memory_bytes", 2**30), "l2_mib": ("l2_bytes", 2**20),
          "shared_memory_kib": ("shared_bytes", 2**10)}  # fmt: skip


def disagreement(name: str, block: Mapping[str, Any], properties: Mapping[str, Any]) -> str:
    """What the driver says of a device otherwise than the block of its GPU, in a sentence; ``""`` for nothing.

    ``properties`` are those of :func:`atlas.host.runtime.properties`, as a survey's document keeps them.  Spaces are
    pruned and cases are sized by the block, so a wrong one costs configs, or lets some fail.
    """
    ((backend, arch),) = block["target"].items()
    theirs: dict[str, Any] = {"sms": properties["sms"]}
    theirs |= {key: properties[of] / unit for key, (of, unit) in _SIZES.items() if properties.get(of)}
    if abs(theirs.get("memory_gib", 0) - block["memory_gib"]) <= _MEMORY_SHARE * block["memory_gib"]:
        theirs.pop("memory_gib")
    parts = [f"{key} {block[key]:g} (driver: {said:.4g})" for key, said in theirs.items() if block[key] != said]
    capability = str(properties["compute_capability"])
    if backend == "cuda" and capability.replace(".", "") != str(arch):
        parts.append(f"target cuda {arch} (driver: {capability})")
    if not matches(block, properties["name"]):
        parts.append(f"match {block.get('match')!r} (not found in the name)")
    if not parts:
        return ""
    remedy = "correct the block, or give this device one of its own"
    return f"gpus.yaml: block {name!r} is not as the driver says of {properties['name']}: {', '.join(parts)}; {remedy}"
