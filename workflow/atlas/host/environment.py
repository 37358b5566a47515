"""What a document says of where it came from: versions, device, commit, date."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Any

from .. import ROOT
from . import devices
from .interpreters import TRITONS


def triton_version() -> str | None:
    """Triton's version, under whatever name it was distributed; None without it."""
    for name in TRITONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def commit(root: Path = ROOT) -> str | None:
    """The commit of the checkout ``root``; None outside git.

    Where kernels or stages differ from it ``+`` and 12 digits of :func:`_difference` follow, as in
    ``b256848819b9+3f2a9c01d4e7``: equal code has an equal name, on any host.
    """
    if shutil.which("git") is None:
        return None

    def git(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, check=False)

    head = git("rev-parse", "--short=12", "HEAD")
    if head.returncode:
        return None
    name = head.stdout.decode().strip()
    code = ("--", "kernels", "workflow")
    changed = git("diff", "--name-only", "--no-renames", "--no-ext-diff", "--relative", "-z", "HEAD", *code)
    untracked = git("ls-files", "--others", "--exclude-standard", "-z", *code)
    paths = {path for said in (changed, untracked) for path in said.stdout.split(b"\0") if path}
    if changed.returncode or untracked.returncode:
        return f"{name}+unknown"
    return f"{name}+{_difference(root, paths)}" if paths else name


def _difference(root: Path, paths: Collection[bytes]) -> str:
    """A digest of the files that differ from the commit: of their names, and of what they hold or that they are gone.

    Of no text that git makes of them, which depends on each user's settings.
    """
    hashed = hashlib.sha256()
    for path in sorted(paths):
        file = root / os.fsdecode(path)
        content = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "gone"
        hashed.update(path + f"\0{content}\n".encode())
    return hashed.hexdigest()[:12]


def python_path(root: Path = ROOT) -> str:
    """PYTHONPATH of a child that runs the modules of the checkout ``root``, and finds whatever this process does."""
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, (str(root / "workflow"), str(root), inherited)))


def software() -> dict[str, Any]:
    """Versions of all that shapes a figure; no host name and no path."""
    import torch

    return {
        "torch": torch.__version__,
        "triton": triton_version(),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def device(uuid: str | None = None) -> dict[str, Any]:
    """The device of this UUID: name, driver, power cap (W), highest clocks (MHz); ``{}`` where NVML knows it not.

    None means the first that this process sees, under a lease the leased one.  Of a MIG instance the name is its own,
    the rest its board's.
    """
    if uuid is None:
        uuid = next((device.uuid for device in devices.visible()), "")
    with devices.nvml() as library:
        if library is None:
            return {}
        try:
            handle = library.nvmlDeviceGetHandleByUUID(uuid)
            is_instance = uuid.startswith("MIG-")
            board = library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if is_instance else handle
        except library.NVMLError:
            return {}
        read = {
            "device_name": lambda: library.nvmlDeviceGetName(handle),
            "driver": library.nvmlSystemGetDriverVersion,
            "power_cap_w": lambda: library.nvmlDeviceGetEnforcedPowerLimit(board) / 1000,
            "max_sm_clock_mhz": lambda: library.nvmlDeviceGetMaxClockInfo(board, library.NVML_CLOCK_SM),
            "max_memory_clock_mhz": lambda: library.nvmlDeviceGetMaxClockInfo(board, library.NVML_CLOCK_MEM),
        }
        found: dict[str, Any] = {}
        for key, ask in read.items():
            try:
                found[key] = ask()
            except library.NVMLError:
                continue  # a board that does not report this one
        return {key: devices.text(value) for key, value in found.items()}
