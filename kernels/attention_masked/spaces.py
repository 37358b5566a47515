"""Configs of the kernels under masks: those of :mod:`kernels.attention.spaces`, with the mask's blocks beside."""

import dataclasses

from atlas.declaration import GPU, Case, Config, element_size

from kernels.attention import spaces
from kernels.attention.blocks import block_d
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


# Where a block of the mask is read beside: on an H200 0.82 to 0.85 of the plain defaults' time (bf16, Triton 3.6).
_BESIDE_A_MASK = {64: (64, 64, 4, 3), 128: (128, 64, 8, 3)}


def forward_default(problem: Case, gpu: GPU, pointers: bool = False) -> dict[str, int]:
    columns = max(64, block_d(problem["d"]))
    if problem["mask"] in ("bool", "added") and not pointers and columns in _BESIDE_A_MASK:
        config = dict(zip(spaces.FORWARD_SPACE, _BESIDE_A_MASK[columns], strict=True))
        if not fits_forward(config, problem, gpu):
            return config
    return spaces.forward_default(problem, gpu, pointers)


def backward_default(problem: Case, gpu: GPU, pointers: bool = False) -> dict[str, int]:
    return spaces.backward_default(problem, gpu, pointers)
