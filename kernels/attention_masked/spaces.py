"""Configs of the kernels under masks: those of :mod:`kernels.attention.spaces`, with the mask's blocks beside."""

import dataclasses

from atlas.declaration import GPU, Case, Config, element_size

from kernels.attention import spaces
from kernels.attention.spaces import PART_CONFIG


def _beside(gpu: GPU, problem: Case, rows: int, columns: int, stages: int) -> GPU:
    """The GPU without the shared memory that blocks of the mask take, one a stage and one on its way to registers."""
    kind = problem["mask"]
    if kind == "none" or kind.endswith("keys"):
        return gpu
    size = element_size(problem.dtype) if kind == "added" else 1
    return dataclasses.replace(gpu, shared_bytes=gpu.shared_bytes - rows * columns * size * stages)


def fits_forward(config: Config, problem: Case, gpu: GPU, pointers: bool = False) -> str:
    beside = _beside(gpu, problem, config["BLOCK_M"], config["BLOCK_N"], config["num_stages"])
    return spaces.fits_forward(config, problem, beside, pointers)


def fits_backward(config: Config, problem: Case, gpu: GPU, pointers: bool = False) -> str:
    for part in ("KEYS", "QUERIES"):
        rows, columns, _, stages = (config[f"{part}_{name}"] for name in PART_CONFIG)
        beside = _beside(gpu, problem, rows, columns, stages)
        if reason := spaces.fits_backward(config, problem, beside, pointers):
            return reason
    return ""


def forward_default(problem: Case, gpu: GPU, pointers: bool = False) -> dict[str, int]:
    return spaces.forward_default(problem, gpu, pointers)


def backward_default(problem: Case, gpu: GPU, pointers: bool = False) -> dict[str, int]:
    return spaces.backward_default(problem, gpu, pointers)
