"""Trouble of the device itself: a fault that outlives the launch, and memory given back between cases."""

from __future__ import annotations

import dataclasses
import gc
from typing import TYPE_CHECKING

import torch

from ..errors import in_a_line

if TYPE_CHECKING:
    from .findings import Finding

_WORTH_RELEASING = 0.25  # of the device's memory


class DeviceLost(Exception):
    """An illegal access or the like: every later call on this device fails, in this process.

    ``finding`` is the row of the check that did it, where that is known.
    """

    def __init__(self, message: str, finding: Finding | None = None):
        super().__init__(message)
        self.finding = finding


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a launch's fault is raised here and not by a later call."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def obstacle(device: torch.device) -> str:
    """What the device answers to every call since it was lost, in one line, or ``""`` where it still works."""
    try:
        synchronize(device)
    except RuntimeError as error:
        return in_a_line(error)
    return ""


def check_alive(
    device: torch.device, during: str, cause: BaseException | None = None, finding: Finding | None = None
) -> None:
    """Raise :class:`DeviceLost` if the device no longer answers after ``cause``, which made ``finding``."""
    answer = obstacle(device)
    if not answer:
        return
    if finding is not None:
        reason = f"{finding.reason}; the device answered no more, and what else this case had was not checked"
        finding = dataclasses.replace(finding, reason=reason)
    first = answer if cause is None else in_a_line(cause)
    further = "" if first == answer else f" ({answer})"
    raise DeviceLost(f"{during}: {first}; the device answers no more in this process{further}", finding) from cause


def release(device: torch.device, always: bool = False, neighbours: int = 1) -> None:
    """Give freed memory back once much of the device is taken, or ``always``.

    Of so many processes on the device, ``neighbours``, each may keep an equal part.

    A collection takes 50 ms in a process that has compiled much: after every case it was half of a validation's time
    (H200, torch 2.11).
    """
    if device.type != "cuda":
        return
    kept = _WORTH_RELEASING * torch.cuda.get_device_properties(device).total_memory / neighbours
    if always or torch.cuda.memory_reserved(device) > kept:
        gc.collect()
        torch.cuda.empty_cache()
