"""A kernel's CUDA C++ peers, as the cuda stage built them, loaded with cuda.core for whoever times or profiles them."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..declaration import gpu_of
from ..results import documents
from . import nvcc


@dataclass(frozen=True)
class Programs:
    """What lies in ``folder``, ``results/measured/<gpu>/<kernel>``; nothing is read before somebody asks."""

    kernel: str
    gpu_name: str
    folder: Path
    device: torch.device

    @functools.cached_property
    def document(self) -> dict[str, Any] | None:
        """What the cuda stage said, or None where it did not run."""
        path = self.folder / "cuda.json"
        return documents.read(path, "cuda") if path.exists() else None

    @functools.cached_property
    def obstacle(self) -> tuple[str, str]:
        """Status and reason of a peer that cannot run for want of a cubin; empty where there is one."""
        again = f"run python -m atlas cuda {self.kernel} --gpu {self.gpu_name}"
        if self.document is None:
            return "missing", f"not built: {again}"
        if self.document["status"] != "ok":
            status = "failed" if self.document["status"] == "failed" else "missing"
            return status, self.document["reason"]
        if self.document["source_sha256"] != nvcc.source_digest(self.kernel):
            return "missing", f"built of other sources than today's kernels/cuda/{self.kernel}.cu: {again}"
        if hashlib.sha256(self._cubin()).hexdigest() != self.document["cubin"]["sha256"]:
            return "missing", f"{self.document['cubin']['file']} is not the one its document describes: {again}"
        return "", ""

    def facts(self) -> dict[str, Any]:
        """``{"cuda": …}`` for the document of a benchmark: what the peers were built by; empty where nothing was."""
        if self.document is None or self.document["status"] != "ok":
            return {}
        built = {key: self.document[key] for key in ("source_sha256", "nvcc", "kernels")}
        return {"cuda": built | {"cuda_core": _cuda_core()}}

    def prepare(self, launcher: str, inputs: Mapping[str, Any]) -> Callable[[], Any]:
        """The thunk of a function of ``kernels/cuda/<kernel>.py``."""
        module = importlib.import_module(f"kernels.cuda.{self.kernel}")
        return getattr(module, launcher)(self._program, **inputs)

    @functools.cached_property
    def _program(self) -> Any:
        pass

        return Program(self._cubin(), int(self.document["target"]["arch"]), self.device)

    def _cubin(self) -> bytes:
        path = self.folder / self.document["cubin"]["file"]
        return path.read_bytes() if path.exists() else b""


def _cuda_core() -> str | None:
    try:
        return importlib.metadata.version("cuda-core")
    except importlib.metadata.PackageNotFoundError:
        return None


class Program:
    """What a launcher of ``kernels/cuda/<name>.py`` gets.

    ``arch`` is the compute capability the cubin is for, 90 for 9.0, and ``sms`` the device's number of SMs.
    """

    int32, int64, float32 = ctypes.c_int32, ctypes.c_int64, ctypes.c_float

    def __init__(self, cubin: bytes, arch: int, device: torch.device):
        from cuda.core import Device, LaunchConfig, ObjectCode, launch

        self.arch = arch
        self.sms = gpu_of(device).sms
        self._launch, self._launch_config = launch, LaunchConfig
        Device(device.index or 0).set_current()  # the context torch works in: the device's primary one
        self._code = ObjectCode.from_cubin(cubin)
        self._streams: dict[int, Any] = {}

    def kernel(self, name: str) -> Any:
        """The entry function of this name."""
        return self._code.get_kernel(name)

    def config(self, grid: int | tuple[int, ...], block: int) -> Any:
        """How many blocks of how many threads."""
        return self._launch_config(grid=grid, block=block)

    def launch(self, config: Any, kernel: Any, *arguments: Any) -> None:
        """Put a launch on torch's current stream; tensors go as their addresses, scalars as ctypes."""
        addresses = (a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments)
        self._launch(self._stream(), config, kernel, *addresses)

    def _stream(self) -> Any:
        from cuda.core import Stream

        handle = torch.cuda.current_stream().cuda_stream
        if handle not in self._streams:
            self._streams[handle] = Stream.from_handle(handle)
        return self._streams[handle]
