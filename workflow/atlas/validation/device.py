"""Trouble of the device itself: a fault that outlives the launch, and memory given back between cases."""

from __future__ import annotations

import gc

import torch

_WORTH_RELEASING = 0.25  # of the device's memory


class DeviceLost(Exception):
    """An illegal access or the like: every later call on this device fails, in this process."""


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a launch's fault is raised here and not by a later call."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def check_alive(device: torch.device, during: str, cause: BaseException) -> None:
    """Raise :class:`DeviceLost` if the device no longer answers after ``cause``."""
    try:
        synchronize(device)
    except RuntimeError as error:
        text = str(cause).strip().splitlines() or [type(cause).__name__]
        raise DeviceLost(f"{during}: {text[0]}; the device answers no more in this process") from error


def release(device: torch.device, always: bool = False) -> None:
    """Give freed memory back once much of the device is taken, or ``always``.

    A collection takes 50 ms in a process that has compiled much: after every case it was half of a validation's time
    (H200, torch 2.11).
    """
    if device.type != "cuda":
        return
    if (
        always
        or torch.cuda.memory_reserved(device) > _WORTH_RELEASING * torch.cuda.get_device_properties(device).total_memory
    ):
        gc.collect()
        torch.cuda.empty_cache()
