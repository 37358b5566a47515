"""NVML as a host with the boards of this list has it; put in the place of ``pynvml``."""

from __future__ import annotations

from dataclasses import dataclass

NVML_DEVICE_MIG_ENABLE = 1
NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2


class NVMLError(Exception):
    """Whatever NVML refuses."""


@dataclass(frozen=True)
class Instance:
    """A MIG instance."""

    uuid: str
    name: str


@dataclass(frozen=True)
class Board:
    """A board; with instances it is in MIG mode."""

    uuid: str
    name: str = "NVIDIA H200"
    power_cap_mw: int = 700_000
    instances: tuple[Instance, ...] = ()
    lost: bool = False


class FakeNvml:
    """The calls that the atlas makes; the handles are the boards themselves."""

    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = NVML_DEVICE_MIG_ENABLE
    NVML_CLOCK_SM, NVML_CLOCK_MEM = NVML_CLOCK_SM, NVML_CLOCK_MEM

    def __init__(self, *boards: Board, driver: str = "580.1", loaded: bool = True):
        self.boards, self.driver, self.loaded = boards, driver, loaded

    def nvmlInit(self):
        if not self.loaded:
            raise NVMLError("driver not loaded")

    def nvmlShutdown(self):
        pass

    def nvmlDeviceGetCount(self):
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, index):
        if self.boards[index].lost:
            raise NVMLError("GPU is lost")
        return self.boards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        for handle in [*self.boards, *(i for board in self.boards for i in board.instances)]:
            if handle.uuid == uuid:
                return handle
        raise NVMLError("not found")

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, instance):
        return next(board for board in self.boards if instance in board.instances)

    def nvmlDeviceGetUUID(self, handle):
        return handle.uuid

    def nvmlDeviceGetName(self, handle):
        return handle.name.encode()  # as older bindings answer

    def nvmlDeviceGetMigMode(self, board):
        if "T4" in board.name:
            raise NVMLError("not supported")
        mode = int(bool(board.instances))
        return [mode, mode]

    def nvmlDeviceGetMaxMigDeviceCount(self, board):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, board, place):
        if place >= len(board.instances):
            raise NVMLError("not found")
        return board.instances[place]

    def nvmlSystemGetDriverVersion(self):
        return self.driver

    def nvmlDeviceGetEnforcedPowerLimit(self, board):
        return board.power_cap_mw

    def nvmlDeviceGetMaxClockInfo(self, board, clock):
        raise NVMLError("not supported")
