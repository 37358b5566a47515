"""Devices lent to one job at a time, by file locks that all of a host's users share.

A device's lock lies in a folder of the host, named after its UUID.  The kernel drops the lock when its holder ends,
however it ends; no child keeps it up.  Jobs of one run, two runs and two checkouts thus keep off each other's
devices; what takes no lease (a notebook, ``nvidia-smi``) is not kept off.

A job has one device for itself (:func:`lease`).  It may borrow more while nobody else wants them (:func:`spare`), and
gives them back when somebody does (:func:`wanted`).  What a holder starts with :attr:`Lease.environment` is part of its
job: there :func:`lease` yields the holder's device without waiting.

Without NVML devices cannot be told apart before a context is open, so the AMD devices of a host are leased as one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import AtlasError
from . import devices, gpus
from .devices import VISIBLE_VARIABLE, Device
from .gpus import LIMIT_VARIABLE

FOLDER_VARIABLE = "KERNEL_ATLAS_LEASES"
"""Where the locks lie, if not in :data:`FOLDER`."""

HOLDER_VARIABLE = "KERNEL_ATLAS_LEASE"
"""Tells what a holder starts who holds which device: ``1234:GPU-…``."""

# Where there is /tmp, not tempfile's choice: two runs with another TMPDIR each would not exclude one another.
FOLDER = Path("/tmp" if Path("/tmp").is_dir() else tempfile.gettempdir()) / "kernel-atlas-leases"

_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 3.0
_GATE_SECONDS = 30.0

_ALL_OF_AMD = Device("", "all AMD devices of this host")


class Lease:
    """A device that is this process's until :meth:`release` or the process's end; also a context manager."""

    def __init__(self, device: Device, lock: FileLock | None):
        self._device, self._lock = device, lock  # no lock of its own where the process that started this one holds it
        _held.add(self)  # a lease that nobody refers to any more is held all the same

    @property
    def uuid(self) -> str:
        """The device's UUID as NVML gives it; empty for AMD."""
        return self._device.uuid

    @property
    def device_name(self) -> str:
        """The driver's name of the device."""
        return self._device.name

    @property
    def environment(self) -> dict[str, str]:
        """What a process must have in its environment, before it initialises CUDA, to see this device alone."""
        holder = {HOLDER_VARIABLE: f"{os.getpid()}:{self.uuid}"} if self._lock else {}
        if not self.uuid:
            return holder
        return {VISIBLE_VARIABLE: self.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | holder

    def release(self) -> None:
        """Give the device back; a second time does nothing."""
        _held.discard(self)
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_held: set[Lease] = set()
_before: dict[str, str | None] | None = None
"""The environment's values that :func:`adopted` replaced; None where it replaced none."""
_bound = ""
"""UUID of the device that CUDA was initialised on in this process under a lease: it will see no other."""


def lease(name: str, block: Mapping[str, Any]) -> Lease:
    """A device that matches GPU ``name``'s block, waited for as long as it takes.

    After a few seconds of waiting one line on stderr says for what.  Raises :class:`AtlasError` where no visible
    device matches, or where the locks cannot be written.
    """
    candidates = [device for device in _candidates(block) if _bound in ("", device.uuid)]
    if not candidates:
        shown = ", ".join(device.name for device in _visible()) or "no GPU"
        raise AtlasError(f"GPU {name!r} is not here: no device matches {block.get('match')!r}; this host shows {shown}")
    with _gate():
        for device in filter(_held_by_parent, candidates):
            return Lease(device, None)
    asked = time.monotonic()
    silent = True
    marks: dict[str, FileLock] = {}
    try:
        while True:
            with _gate():
                if free := _first_free(candidates):
                    return free
                _queue_up(candidates, marks)
            if silent and time.monotonic() - asked > _PATIENCE_SECONDS:
                silent = False
                holders = "; ".join(f"{device.uuid or device.name} by {_holder(device)}" for device in candidates)
                print(f"waiting for GPU {name!r}, leased: {holders}; locks in {_folder()}", file=sys.stderr, flush=True)
            time.sleep(_POLL_SECONDS)
    finally:
        for mark in marks.values():
            mark.release()


def _first_free(candidates: Iterable[Device]) -> Lease | None:
    """A lease of the first device that nobody holds; only behind the gate."""
    for device in candidates:
        if lock := _try(_lock_file(device)):
            return _lent(device, lock)
    return None


def _queue_up(candidates: Iterable[Device], marks: dict[str, FileLock]) -> None:
    """Mark the devices that one waits for, beside those already in ``marks``; only behind the gate.

    One waiter's mark on a device speaks for all of them; if that one is served, another marks it.
    """
    for device in candidates:
        if device.uuid not in marks and (mark := _try(_queue_file(device))):
            marks[device.uuid] = mark


def spare(name: str, block: Mapping[str, Any]) -> Lease | None:
    """One more device of this kind, if one is free now, nobody waits for it, and the limit leaves room; else None.

    The limit (:data:`~atlas.host.gpus.LIMIT_VARIABLE`) counts what anybody has leased of the devices visible here.
    Whoever holds a spare asks :func:`wanted` between two pieces of work.
    """
    limit = _limit()
    if limit < 2:
        return None  # before NVML is asked: a tuner asks this every half second
    candidates = _candidates(block)
    if len(candidates) < 2:
        return None
    with _gate():
        if any(_taken(_queue_file(device)) for device in candidates):
            return None
        if sum(_taken(_lock_file(device)) for device in _visible()) >= limit:
            return None
        return _first_free(candidates)


def wanted(name: str, block: Mapping[str, Any]) -> bool:
    """True while a job waits for a device of this kind: spares are to be given back."""
    candidates = _candidates(block)
    if not candidates:
        return False
    with _gate():
        return any(_taken(_queue_file(device)) for device in candidates)


def counter_of_others() -> Callable[[], int]:
    """Says, when called, how many of the devices visible here are leased to others than this process."""
    shown = _visible()  # once: NVML takes a while to open

    def others() -> int:
        own = {lease.uuid for lease in _held}
        theirs = [device for device in shown if device.uuid not in own]
        if not theirs:
            return 0
        with _gate():
            return sum(_taken(_lock_file(device)) for device in theirs)

    return others


@contextlib.contextmanager
def adopted(own: Lease) -> Iterator[None]:
    """This process sees the leased device alone; spares are still looked for among all it saw before.

    If CUDA is initialised meanwhile, the process stays bound to the device, and leases no other one afterwards.
    Raises RuntimeError if CUDA was initialised earlier, on devices that are not this one alone.
    """
    global _before, _bound
    if _cuda_runs() and own.uuid and _bound != own.uuid and [d.uuid for d in devices.visible()] != [own.uuid]:
        raise RuntimeError("CUDA was initialised before the lease: what it shows can no longer be narrowed")
    if _before is None:
        _before = {name: os.environ.get(name) for name in own.environment}
    os.environ.update(own.environment)
    try:
        yield
    finally:
        if _cuda_runs() and own.uuid:
            _bound = own.uuid
        else:
            for name, value in _before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            _before = None


def _cuda_runs() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _visible() -> list[Device]:
    """The devices visible to this process, or that were before :func:`adopted` narrowed them."""
    before = os.environ | (_before or {})
    return devices.visible({name: value for name, value in before.items() if value is not None})


def _candidates(block: Mapping[str, Any]) -> list[Device]:
    if "hip" in block["target"]:
        return [_ALL_OF_AMD]
    return [device for device in _visible() if gpus.matches(block, device.name)]


def _held_by_parent(device: Device) -> bool:
    """Whether the process that this one was started by, or for, holds the device still; only behind the gate."""
    holder, _, uuid = os.environ.get(HOLDER_VARIABLE, "").partition(":")
    if holder in ("", str(os.getpid())) or uuid != device.uuid:
        return False
    return _taken(_lock_file(device)) and _holder(device).startswith(f"process {holder} ")


def _limit() -> int:
    value = os.environ.get(LIMIT_VARIABLE, "1")
    if not value.isdigit():
        raise AtlasError(f"environment variable {LIMIT_VARIABLE} is {value!r}; give a number of GPUs, or unset it")
    return int(value)


def _folder() -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or FOLDER)


def _lock_file(device: Device) -> Path:
    return _folder() / f"{device.uuid or 'amd'}.lock"


def _queue_file(device: Device) -> Path:
    return _folder() / f"{device.uuid or 'amd'}.queue"


@contextlib.contextmanager
def _gate() -> Iterator[None]:
    """Alone with the locks for a moment, so that nobody takes another's test of a lock for a lease."""
    folder = _folder()
    gate = _file_lock(folder / "gate")
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            folder.chmod(0o1777)  # every user's leases count; nobody removes another's
        gate.acquire(timeout=_GATE_SECONDS)
    except Timeout:
        raise AtlasError(
            f"{gate.lock_file}: held for more than {_GATE_SECONDS:g} s; end the process that holds it"
        ) from None
    except OSError as error:
        raise AtlasError(_unwritable(folder, error)) from None
    try:
        yield
    finally:
        gate.release()


def _try(path: Path) -> FileLock | None:
    """The lock, if it is free; only behind the gate."""
    lock = _file_lock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    except OSError as error:
        raise AtlasError(_unwritable(path, error)) from None
    return lock


def _taken(path: Path) -> bool:
    lock = _try(path)
    if lock is not None:
        lock.release()
    return lock is None


def _file_lock(path: Path) -> FileLock:
    # 0666 whatever the umask is: another user's process opens the same file.  Released by any thread.
    return FileLock(path, mode=0o666, thread_local=False)


def _unwritable(path: Path, error: OSError) -> str:
    reason = error.strerror or error
    return f"{path}: GPU leases cannot be kept there: {reason}; name another folder in {FOLDER_VARIABLE}"


def _lent(device: Device, lock: FileLock) -> Lease:
    # Who holds it, for the message of those who wait; opened without O_CREAT, which a sticky folder may refuse to
    # others than the file's owner.
    program = Path(sys.argv[0])
    words = [program.parent.name if program.name == "__main__.py" else program.name, *sys.argv[1:]]
    with contextlib.suppress(OSError), Path(lock.lock_file).open("r+") as file:
        file.truncate()
        file.write(f"process {os.getpid()} ({' '.join(words)[:200]})\n")
    return Lease(device, lock)


def _holder(device: Device) -> str:
    with contextlib.suppress(OSError):
        if words := _lock_file(device).read_text(errors="replace").strip():
            return words
    return "another process"
