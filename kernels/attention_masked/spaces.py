"""Configs of the kernels under masks: those of :mod:`kernels.attention.spaces`, with the mask's blocks beside."""

import dataclasses

from atlas.declaration import GPU, Case, Config, element_size

from kernels.attention import spaces
from kernels.attention.blocks import block_d
from kernels.attention.spaces import FORWARD_SPACE, PART_CONFIG


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


# By the columns of a block, where one of the mask is read beside: on an H200 forward 0.82 to 0.85 of the time of the
# plain defaults, backward 0.98 (bf16, Triton 3.6).
_BESIDE_A_MASK = {64: (64, 64, 4, 3), 128: (128, 64, 8, 3)}
_QUERIES_BESIDE_A_MASK = {64: (64, 64, 4, 2)}


def forward_default(problem: Case, gpu: GPU, pointers: bool = False) -> dict[str, int]:
    plain = spaces.forward_default(problem, gpu, pointers)
    config = plain | _beside_a_mask(_BESIDE_A_MASK, FORWARD_SPACE, problem)
    return plain if pointers or fits_forward(config, problem, gpu) else config


def backward_default(problem: Case, gpu: GPU, pointers: bool = False) -> dict[str, int]:
    plain = spaces.backward_default(problem, gpu, pointers)
    names = [f"QUERIES_{name}" for name in PART_CONFIG]
    config = plain | _beside_a_mask(_QUERIES_BESIDE_A_MASK, names, problem)
    return plain if pointers or fits_backward(config, problem, gpu) else config


def _beside_a_mask(table, names, problem):
    columns = max(64, block_d(problem["d"]))
    if problem["mask"] not in ("bool", "added") or columns not in table:
        return {}
    return dict(zip(names, table[columns], strict=True))
