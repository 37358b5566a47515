"""Tuning space of `folded`: how many rows are read as one line, what fits, and where tuning starts."""

import math
from dataclasses import dataclass

import triton
from atlas.declaration import GPU, Case, element_size
from atlas.declaration.rows import VECTOR_BYTES

from .results import BESIDE, PART_REGISTERS, splits_of
from .spaces import first, is_apart, reads_odd_rows_long, spills, under_way

SPACE = {"VECTORS": (1, 2, 4, 8), "num_warps": (2, 4, 8), "PER_SM": (1, 2, 4, 8, 16)}
"""VECTORS are of 16 bytes, each thread's; PER_SM is how many programs each SM gets where results are shared."""

_SMALLEST = {"VECTORS": 1, "num_warps": 2, "PER_SM": 8}

_LARGEST = {"VECTORS": 8, "num_warps": 8, "PER_SM": 2}

_RUNS = 2
"""Runs that a matrix has at least: each program adds up the places of its line at the end."""

_FEWEST = 64
"""Rows from which on reading them pays for adding up the places of a line."""

_WIDEST = 1024
"""Columns up to which a group of rows is a block."""

_WIDER = 2048
"""Columns up to which it is where ``blocks`` would load two bytes at a time, and much."""

_FEW = {2: 1 / 2, 4: 2}
"""Programs an SM, by bytes of an element, up to which ``blocks`` is faster, whose parts are of fewer columns: of 4-byte
elements a vector saves the fewest loads."""


@dataclass(frozen=True)
class Run:
    """``rows`` of a matrix that are read as one line of ``block`` places or less; ``group`` of them, the fewest that
    are whole vectors, divide them."""

    group: int
    rows: int
    block: int


def run_of(config, inner: int, vector: int) -> Run:
    """The run for VECTORS 16-byte vectors a thread; ``vector`` is their length in elements."""
    block = 32 * config["num_warps"] * config["VECTORS"] * vector
    group = vector // math.gcd(inner, vector)
    return Run(group, block // (group * inner) * group, block)


def shares_of(gpu: GPU, config, outer: int, n: int, inner: int, rows: int) -> int:
    """Programs that share a matrix: no more than whose parts one program holds while it combines them."""
    most = max(1, PART_REGISTERS * 32 * config["num_warps"] // triton.next_power_of_2(inner))
    return splits_of(gpu, config, outer, n // (2 * rows), most)


def _run(config, problem: Case) -> Run:
    return run_of(config, problem["inner"], VECTOR_BYTES // element_size(problem.dtype))


def _leaves_sms(config, problem: Case, gpu: GPU) -> bool:
    """Whether few programs share the matrices, since one cannot hold the parts of more."""
    outer, n, inner = problem["outer"], problem["n"], problem["inner"]
    rows = _run(config, problem).rows
    shares = shares_of(gpu, config, outer, n, inner, rows)
    return shares < n // (2 * rows) and outer * shares <= _FEW[element_size(problem.dtype)] * gpu.sms


def _is_wide(problem: Case, gpu: GPU) -> bool:
    """Whether eight odd rows of 16 bits fill two thirds of the largest block, and are much to read.

    20 x 3000 x 2047 80.2 us, ``blocks`` 97.2; 12 x 3000 x 1801 54.2, and 71.5 at best (H200).
    """
    inner, odd = problem["inner"], problem["inner"] % 2 == 1
    block = run_of(_LARGEST, inner, VECTOR_BYTES // 2).block
    filled = inner <= _WIDER and 3 * 8 * inner >= 2 * block
    return odd and filled and element_size(problem.dtype) == 2 and reads_odd_rows_long(problem, gpu)


def handles(problem: Case, gpu: GPU) -> str:
    """What has an address for nearly every element else; of those that compare and count, ``blocks`` is faster.

    So it is where parts are of such long rows that few programs may share a matrix (1 x 4096 x 449 fp32 amax: 16 take
    41.9 us, ``blocks`` 10.5; 1 x 32768 x 102 bf16: 64 take 21.2 us, and 10.3; H200), and of much to read in long rows
    of words (17 x 4000 x 1023 amax: 110.5, and 80.4).
    """
    if problem["inner"] == 1 or not is_apart(problem, problem["inner"]):
        return "the last axis is reduced, or rows are whole 8-byte vectors"
    if problem["op"] in BESIDE:
        return "a second result: each place of a line would have one"
    if problem["inner"] > _WIDEST and not _is_wide(problem, gpu):
        return f"rows of more than {_WIDEST} elements"
    if element_size(problem.dtype) == 4 and reads_odd_rows_long(problem, gpu):
        return "long rows of words, much of them: a vector saves the fewest loads"
    if problem["n"] < _FEWEST or all(_obstacle(config, problem) for config in _configs()):
        return "few rows: a program would begin and end with each run of them"
    few = _leaves_sms(default(problem, gpu), problem, gpu)
    return "few programs: one has no registers for the parts of more" if few else ""


def _configs():
    return [{"VECTORS": v, "num_warps": w, "PER_SM": 1} for v in SPACE["VECTORS"] for w in SPACE["num_warps"]]


def _obstacle(config, problem: Case) -> str:
    run = _run(config, problem)
    if run.rows == 0:
        return "a group of rows longer than a block"
    if run.rows * _RUNS > problem["n"]:
        return "a matrix of few runs of rows"
    return spills(config, problem)


def fits(config, problem: Case, gpu: GPU) -> str:
    obstacle = _obstacle(config, problem)
    if obstacle:
        return obstacle
    run = _run(config, problem)
    if 3 * run.rows * problem["inner"] < 2 * run.block and any(
        3 * other.rows * problem["inner"] >= 2 * other.block
        for other in (_run(c, problem) for c in _configs() if not _obstacle(c, problem))
    ):
        return "a third of the block is beyond the run"
    if config == _SMALLEST:  # of few rows nothing larger may be left
        return ""
    return under_way(config, problem["outer"], gpu, SPACE["PER_SM"][-1])


def default(problem: Case, gpu: GPU) -> dict:
    """Two vectors a thread where a group of rows is as short as that; of wide rows as many as it takes."""
    sizes = (
        (2, 4, 8),
        (2, 2, 16),
        (2, 4, 1),
        (2, 2, 1),
        (1, 2, 1),
        (4, 4, 4),
        (4, 4, 1),
        (4, 8, 4),
        (8, 4, 4),
        (8, 4, 1),
        (8, 8, 2),
    )
    configs = [{"VECTORS": v, "num_warps": w, "PER_SM": p} for v, w, p in sizes]
    return first(SPACE, fits, problem, gpu, configs)
