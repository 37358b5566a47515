"""The GPUs of ``config/gpus.yaml``: their blocks, and where each one is.  Imports no torch until a GPU is built."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import AtlasError

if TYPE_CHECKING:
    from .declaration import GPU

HERE, CLUSTER, RECORDED, ABSENT = "here", "cluster", "recorded", "absent"

PLACES_VARIABLE = "KERNEL_ATLAS_PLACES"
"""Where the head process leaves its answer for the jobs, which parse the workflow again: ``h200=here,t4=absent``."""


@dataclass(frozen=True)
class Place:
    """Where one GPU is, and what the driver calls it there."""

    where: str
    device_name: str = ""

    @property
    def reachable(self) -> bool:
        """True where its kernels can run now: on this host or through the cluster."""
        return self.where in (HERE, CLUSTER)


def devices_here() -> list[str]:
    """The driver's names of the GPUs visible on this host, through NVML; empty without a driver."""
    if "KERNEL_ATLAS_DEVICES" in os.environ:  # simulated hosts, for dry runs and tests
        return [name for name in os.environ["KERNEL_ATLAS_DEVICES"].split(";") if name]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return []
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        found = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
    finally:
        pynvml.nvmlShutdown()
    return [name.decode() if isinstance(name, bytes) else name for name in found]


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
) -> dict[str, Place]:
    """Where each named GPU is; :class:`AtlasError` if a required one cannot be reached.

    ``recorded`` is the folder of committed records; ``cluster`` says that the executor places jobs on other hosts.
    """
    if PLACES_VARIABLE in os.environ:
        settled = dict(item.split("=") for item in os.environ[PLACES_VARIABLE].split(",") if item)
        if set(names) <= set(settled):
            return {name: Place(settled[name]) for name in names}
    devices = devices_here()
    places = {name: _place(name, blocks[name], devices, recorded, cluster) for name in names}
    for name in required:
        if name not in places or not places[name].reachable:
            seen = ", ".join(devices) if devices else "no GPU"
            raise AtlasError(
                f"GPU {name!r} is required but not here: no device matches {blocks[name]['match']!r}; "
                f"this host shows {seen}; take it out of the key 'require', or run where it is"
            )
    return places


def _place(name: str, block: Mapping[str, Any], devices: list[str], recorded: Path, cluster: bool) -> Place:
    if "cpu" in block["target"]:
        return Place(HERE, "Triton interpreter")
    for device in devices:
        if re.search(block["match"], device):
            return Place(HERE, device)
    if cluster and block.get("cluster"):
        return Place(CLUSTER)
    return Place(RECORDED if any((recorded / name).glob("**/*.json")) else ABSENT)


def publish(places: Mapping[str, Place]) -> None:
    """Leave the answer in the environment, so that jobs which parse the workflow again get the same."""
    os.environ[PLACES_VARIABLE] = ",".join(f"{name}={place.where}" for name, place in places.items())


def functional(block: Mapping[str, Any]) -> bool:
    """True for a block that is run by the interpreter."""
    return "cpu" in block["target"]


def gpu(name: str, block: Mapping[str, Any]) -> GPU:
    """The :class:`~atlas.declaration.GPU` that a block describes."""
    import dataclasses

    from .declaration import GPU
    from .declaration.hardware import INTERPRETER

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
