"""The NVIDIA devices that this process may use: found through NVML, which opens no CUDA context, narrowed as CUDA does.

Indices of ``CUDA_VISIBLE_DEVICES`` count in PCI bus order, as NVML and ``nvidia-smi`` do; CUDA itself counts so only
where ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

SIMULATED_VARIABLE = "KERNEL_ATLAS_DEVICES"
"""Names separated by ``;`` in place of what the driver shows: for dry runs and tests."""

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Device:
    """One device: a board, or one MIG instance of a board."""

    uuid: str
    """As the driver gives it: ``GPU-…`` or ``MIG-…``."""
    name: str


def visible(environment: Mapping[str, str] | None = None) -> list[Device]:
    """The devices a process with this environment (default: this process's) may use, in CUDA's order.

    ``CUDA_VISIBLE_DEVICES`` narrows and orders them; of a board in MIG mode its instances count, not the board.
    Simulated devices are visible whatever that variable says.
    """
    environment = os.environ if environment is None else environment
    if SIMULATED_VARIABLE in environment:
        names = [name for name in environment[SIMULATED_VARIABLE].split(";") if name]
        return [Device(f"SIMULATED-{index}", name) for index, name in enumerate(names)]
    mask = environment.get(VISIBLE_VARIABLE)
    if mask is not None and not mask.strip():
        return []
    with nvml() as library:
        boards = _boards(library) if library else []
    everything = [device for board in boards for device in board.shown]
    return everything if mask is None else _chosen(mask, boards, everything)


@contextmanager
def nvml() -> Iterator[Any]:
    """The ``pynvml`` module, initialised for the body; None where this host has no NVML."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def text(value: Any) -> Any:
    """What NVML answered, text as ``str``: older bindings give bytes."""
    return value.decode() if isinstance(value, bytes) else value


@dataclass(frozen=True)
class _Board:
    uuid: str
    shown: tuple[Device, ...]


def _boards(library: Any) -> list[_Board]:
    """Every board in NVML's order; one that does not answer keeps its index and shows nothing."""
    found = []
    for index in range(library.nvmlDeviceGetCount()):
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
            board = _device(library, handle)
            shown = tuple(_instances(library, handle)) if _partitioned(library, handle) else (board,)
        except library.NVMLError:
            found.append(_Board("", ()))
        else:
            found.append(_Board(board.uuid, shown))
    return found


def _device(library: Any, handle: Any) -> Device:
    return Device(text(library.nvmlDeviceGetUUID(handle)), text(library.nvmlDeviceGetName(handle)))


def _partitioned(library: Any, handle: Any) -> bool:
    try:
        return library.nvmlDeviceGetMigMode(handle)[0] == library.NVML_DEVICE_MIG_ENABLE
    except library.NVMLError:
        return False  # a board that knows no MIG


def _instances(library: Any, handle: Any) -> Iterator[Device]:
    for place in range(library.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            yield _device(library, library.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))
        except library.NVMLError:
            continue  # nobody made an instance there


def _chosen(mask: str, boards: list[_Board], everything: list[Device]) -> list[Device]:
    """CUDA's rule: the first entry that names nothing ends the list, and one that repeats another empties it."""
    found: list[Device] = []
    for entry in map(str.strip, mask.split(",")):
        if entry.lstrip("-").isdigit():
            index = int(entry)
            named = list(boards[index].shown) if 0 <= index < len(boards) else []
        else:
            named = [device for device in everything if entry and device.uuid.startswith(entry)]
            named = named if len(named) == 1 else _of_board(entry, boards)
        if not named:
            break
        if any(device in found for device in named):
            return []
        found += named
    return found


def _of_board(prefix: str, boards: list[_Board]) -> list[Device]:
    """What the one board shows whose UUID begins so: its MIG instances."""
    named = [board for board in boards if prefix and board.uuid.startswith(prefix)]
    return list(named[0].shown) if len(named) == 1 else []
