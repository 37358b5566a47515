"""A cubin, loaded with cuda.core, whose kernels are launched on torch's current stream with torch's tensors."""

from __future__ import annotations

import ctypes
from typing import Any

import torch


class Program:
    """What a launcher of ``kernels/cuda/<name>.py`` gets.

    ``arch`` is the compute capability the cubin is for, 90 for 9.0, and ``sms`` the device's number of SMs.
    """

    int32, int64, float32 = ctypes.c_int32, ctypes.c_int64, ctypes.c_float

    def __init__(self, cubin: bytes, arch: int, device: torch.device):
        from cuda.core import Device, LaunchConfig, ObjectCode, launch

        self.arch = arch
        self.sms = torch.cuda.get_device_properties(device).multi_processor_count
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
