"""Configs of the kernels under masks: those of :mod:`kernels.attention.spaces`, with the mask's blocks beside."""

import dataclasses

from atlas.declaration import GPU, Capability, Case, Config, element_size
from atlas.declaration.products import reads_shared_memory, uses_tensor_cores

from kernels.attention import spaces
from kernels.attention.blocks import block_d
from kernels.attention.spaces import FORWARD_SPACE, PART_CONFIG

from .blocks import columns_of


def _beside(gpu: GPU, problem: Case, rows: int, columns: int, stages: int) -> GPU:
    """The GPU without the shared memory that blocks of the mask take, one a stage and one on its way to registers."""
    kind = problem["mask"]
    if kind == "none" or kind.endswith("keys"):
        return gpu
    size = element_size(problem.dtype) if kind == "added" else 1
    return dataclasses.replace(gpu, shared_bytes=gpu.shared_bytes - rows * columns * size * stages)


def fits_forward(config: Config, problem: Case, gpu: GPU, pointers: bool = False) -> str:
    rows, columns, warps, stages = (config[name] for name in FORWARD_SPACE)
    beside, parts = _beside(gpu, problem, rows, columns, stages), columns_of(problem["d"])
    if not parts[1] or gpu.functional or not uses_tensor_cores(problem, gpu):
        return spaces.fits_forward(config, problem, beside, pointers)
    # As there, but by the columns of both parts: larger blocks fit the registers.
    shared = sum(spaces.bytes_shared(rows, columns, _wide(problem, d), gpu, stages) for d in parts)
    if reason := spaces.too_much_shared(shared, beside):
        return reason
    if reads_shared_memory(problem, gpu):
        return spaces.forward_by_wgmma(rows, columns, warps, stages, sum(parts), pointers)
    return spaces.forward_by_mma(rows, columns, warps, stages, sum(parts))


def _wide(problem: Case, d: int) -> Case:
    """The same of heads of ``d``."""
    return dataclasses.replace(problem, sizes=tuple((dict(problem.sizes) | {"d": d}).items()))


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

# Of few queries, that more multiprocessors have work: forward 0.61 to 0.92 of the time, backward 0.90, 0.92.
# Where they see few keys, too, those are not worth a third stage (as fast as 0.74).
_OF_FEW = {64: (64, 64, 4, 3), 128: (64, 64, 4, 3), 256: (64, 32, 4, 3)}
_OF_FEW_ON_FEW = {64: (64, 64, 4, 2), 128: (64, 64, 4, 2), 256: (64, 32, 4, 3)}
_QUERIES_OF_FEW = {64: (64, 64, 4, 2), 128: (64, 64, 4, 2), 256: (64, 32, 4, 2)}

# Of heads in two parts where a warp multiplies for itself: of 80 columns it spills nowhere, of 96 on an L40S.
_BY_MMA_IN_PARTS = (128, 64, 8, 2)


def forward_default(problem: Case, gpu: GPU, pointers: bool = False) -> dict[str, int]:
    plain = spaces.forward_default(problem, gpu, pointers)
    if 64 < problem["d"] <= 80 and not reads_shared_memory(problem, gpu):
        config = dict(zip(FORWARD_SPACE, _BY_MMA_IN_PARTS, strict=True))
        return plain if fits_forward(config, problem, gpu, pointers) else config
    reach = problem["left"] + problem["right"] if problem["left"] and problem["right"] else problem["s"]
    of_few = _OF_FEW_ON_FEW if min(reach, problem["s"]) <= 128 else _OF_FEW
    config = plain | _from(_BESIDE_A_MASK, of_few, FORWARD_SPACE, problem, gpu)
    return plain if pointers or fits_forward(config, problem, gpu) else config


def backward_default(problem: Case, gpu: GPU, pointers: bool = False) -> dict[str, int]:
    plain = spaces.backward_default(problem, gpu, pointers)
    names = [f"QUERIES_{name}" for name in PART_CONFIG]
    config = plain | _from(_QUERIES_BESIDE_A_MASK, _QUERIES_OF_FEW, names, problem, gpu)
    return plain if pointers or fits_backward(config, problem, gpu) else config


def _from(beside, of_few, names, problem, gpu):
    """What the tables say of a case, nothing where the plain default is as good."""
    columns, rows = max(64, block_d(problem["d"])), 128
    few = problem["b"] * problem["h"] * -(-problem["l"] // rows) < gpu.sms or problem["l"] <= rows // 2
    if few and Capability.WGMMA in gpu.capabilities:
        table = of_few
    else:
        table = beside if problem["mask"] in ("bool", "added") else {}
    return dict(zip(names, table[columns], strict=True)) if columns in table else {}
