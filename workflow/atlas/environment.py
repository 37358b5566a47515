"""What a document says of where it came from: versions, device, commit, date."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import shutil
import subprocess
from typing import Any

from . import ROOT


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The checkout's commit, with ``-dirty`` where kernels or stages were changed since; None outside git."""
    if shutil.which("git") is None:
        return None

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)

    head = git("rev-parse", "--short=12", "HEAD")
    if head.returncode:
        return None
    changed = git("status", "--porcelain", "--", "kernels", "workflow").stdout.strip()
    return head.stdout.strip() + ("-dirty" if changed else "")


def software() -> dict[str, Any]:
    """Versions of all that shapes a figure; no host name and no path."""
    import torch

    return {
        "torch": torch.__version__,
        "triton": _version("triton"),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def device(index: int = 0) -> dict[str, Any]:
    """The device a figure was measured on: name, driver, power cap, clocks' limits; ``{}`` without NVML."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        read = {
            "device_name": lambda: pynvml.nvmlDeviceGetName(handle),
            "driver": pynvml.nvmlSystemGetDriverVersion,
            "power_cap_w": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
            "max_sm_clock_mhz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "max_memory_clock_mhz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        }
        found: dict[str, Any] = {}
        for key, ask in read.items():
            try:
                value = ask()
            except pynvml.NVMLError:
                continue  # a board that does not report this one
            found[key] = value.decode() if isinstance(value, bytes) else value
        return found
    finally:
        pynvml.nvmlShutdown()
