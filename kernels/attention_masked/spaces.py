"""Configs of the kernels under masks: those of :mod:`kernels.attention.spaces`, with the mask's blocks beside."""

import dataclasses

from atlas.declaration import GPU, Capability, Case, Config, element_size
from atlas.declaration.products import reads_shared_memory, uses_tensor_cores

from kernels.attention import spaces
from kernels.attention.blocks import block_d
from kernels.attention.spaces import FORWARD_SPACE, PART_CONFIG

from .blocks import columns_of


def _room_beside(gpu: GPU, problem: Case, rows: int, columns: int, stages: int) -> GPU:
    """The GPU without the shared memory that blocks of the mask take, one a stage and one on its way to registers."""
    kind = problem["mask"]
    if kind == "none" or kind.endswith("keys"):
        return gpu
    size = element_size(problem.dtype) if kind == "added" else 1
    return dataclasses.replace(gpu, shared_bytes=gpu.shared_bytes - rows * columns * size * stages)


def fits_forward(config: Config, problem: Case, gpu: GPU, pointers: bool = False) -> str:
    rows, columns, warps, stages = (config[name] for name in FORWARD_SPACE)
    beside, parts = _room_beside(gpu, problem, rows, columns, stages), columns_of(problem["d"])
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
        beside = _room_beside(gpu, problem, rows, columns, stages)
        if reason := spaces.fits_backward(config, problem, beside, pointers):
            return reason
    return ""


# By the columns of a block, where one of the mask is read beside: on an H200 forward 0.82 to 0.85 of the time of the
# plain defaults, backward 0.98 (bf16, Triton 3.6).
_BESIDE_A_MASK = {64: (64, 64, 4, 3), 128: (128, 64, 8, 3)}
_PART_BESIDE_A_MASK = (64, 64, 4, 2)  # of 64 columns

# By wgmma programs of 64 queries, several to an SM, are faster beside blocks of bools, small in shared memory: 0.76 to
# 0.95 of the time, of heads of 128 up to 2048 keys; of 4096 those of 128 queries, which read keys half as often (0.96).
# Without a block small heads see 64 keys at a time, for less of a window's ends or of a tail is masked: 0.80 to 1.00.
_BESIDE_BOOLS = _BESIDE_A_MASK | {128: (64, 64, 4, 2)}
_BESIDE_NONE = {64: (64, 64, 4, 2)}

# In a narrow window blocks of 32 keys leave less of its ends to masks, and of 256 columns two programs of 64 queries
# fill an SM instead of one of 128: 0.73 to 0.88 of the time (41 to 201 keys), of 501 as fast, of 1501 1.10.
NARROW = 256
_IN_NARROW = _BESIDE_NONE | {256: (64, 32, 4, 2)}

# Of heads in two parts, of 80 columns and not 128, a warp has registers for twice as many queries: 0.78, 0.91.
_IN_PARTS = {128: (128, 64, 4, 3)}

# Of few queries, that more multiprocessors have work: forward 0.61 to 0.92 of the time.
# Where they see few keys, too, those are not worth a third stage (as fast as 0.74).
_OF_FEW = {64: (64, 64, 4, 3), 128: (64, 64, 4, 3), 256: (64, 32, 4, 3)}
_OF_FEW_ON_FEW = {64: (64, 64, 4, 2), 128: (64, 64, 4, 2), 256: (64, 32, 4, 3)}

# With a third stage and the mask's blocks one of those programs of 128 columns fills an SM: where they are more than
# SMs, two of two stages do, or half as many of twice the queries.  0.79 to 0.85 of the time of bools, 0.80 of numbers.
_CROWDED = {kind: {128: table[128]} for kind, table in (("bool", _BESIDE_BOOLS), ("added", _BESIDE_A_MASK))}

# Of heads in two parts where a warp multiplies for itself: of 80 columns it spills nowhere, of 96 on an L40S.
_BY_MMA_IN_PARTS = (128, 64, 8, 2)


def forward_default(problem: Case, gpu: GPU, pointers: bool = False) -> dict[str, int]:
    plain = spaces.forward_default(problem, gpu, pointers)
    if _in_parts(problem) and not reads_shared_memory(problem, gpu):
        config = dict(zip(FORWARD_SPACE, _BY_MMA_IN_PARTS, strict=True))
        return plain if fits_forward(config, problem, gpu, pointers) else config
    columns = _columns(problem)
    table = _by_wgmma(problem, gpu) if Capability.WGMMA in gpu.capabilities else _beside(problem)
    config = plain | (dict(zip(FORWARD_SPACE, table[columns], strict=True)) if columns in table else {})
    return plain if pointers or fits_forward(config, problem, gpu) else config


def _in_parts(problem):
    """Whether a head is in two parts, of 64 and 16 columns."""
    return 64 < problem["d"] <= 80


def _columns(problem):
    return max(64, block_d(problem["d"]))


def _beside(problem):
    return _BESIDE_A_MASK if problem["mask"] in ("bool", "added") else {}


def _by_wgmma(problem, gpu):
    """Configs by columns, where the plain default is not as good."""
    mask, left, right, rows = problem["mask"], problem["left"], problem["right"], 128
    if problem["b"] * problem["h"] * -(-problem["l"] // rows) < gpu.sms or problem["l"] <= rows // 2:
        reach = left + right if left and right else problem["s"]
        if min(reach, problem["s"]) <= 128:
            return _OF_FEW_ON_FEW
        alone = problem["b"] * problem["h"] * -(-problem["l"] // 64) <= gpu.sms
        return _OF_FEW if alone or columns_of(problem["d"])[1] else _OF_FEW | _CROWDED.get(mask, {})
    if mask == "bool" and (_in_parts(problem) or problem["s"] <= 2048):
        return _BESIDE_BOOLS
    if mask != "bool" and _in_parts(problem) and not left and not right:
        return _IN_PARTS
    if left and right and left + right <= NARROW:
        return _beside(problem) or _IN_NARROW
    return _beside(problem) or _BESIDE_NONE


def backward_default(problem: Case, gpu: GPU, pointers: bool = False) -> dict[str, int]:
    plain = spaces.backward_default(problem, gpu, pointers)
    if not _beside(problem) or _columns(problem) > 64:
        return plain
    part = "KEYS" if Capability.WGMMA in gpu.capabilities else "QUERIES"  # the other is no larger without a mask
    config = plain | dict(zip((f"{part}_{name}" for name in PART_CONFIG), _PART_BESIDE_A_MASK, strict=True))
    return plain if pointers or fits_backward(config, problem, gpu) else config
