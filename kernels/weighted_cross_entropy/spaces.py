"""Spaces of the variants: what fits, and what runs untuned."""

import triton
from atlas.declaration.cases import element_size
from atlas.declaration.rows import OTHER_REGISTERS, VECTOR_BYTES, most_warps, points, registers_obstacle

from kernels.common import strip_configs

from .cases import rows_of
from .tiling import tile_of

SPACE = {
    "BLOCK_M": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048),
    "VECTORS": (1, 2, 4),
    "num_warps": (4, 8),
}
"""BLOCK_M rows of a program, VECTORS of 16 bytes of each thread."""

FORWARD_SPACE = SPACE | {"num_warps": (*SPACE["num_warps"], 16, 32)}
"""Of more warps where a row is all that an SM has to read."""


def _vectors(config, problem):
    """Elements of one vector of each thread."""
    return 32 * config["num_warps"] * VECTOR_BYTES // element_size(problem.dtype)


def fits(live):
    """``fits`` of a pass that keeps ``live`` numbers of each element of a block in registers."""

    def obstacle(config, problem, gpu):
        rows, vectors, smallest = config["BLOCK_M"], _vectors(config, problem), config["VECTORS"] == 1
        if rows > vectors:
            return "more rows than a vector of each thread"
        if config["num_warps"] > SPACE["num_warps"][-1] and (rows > 1 or not _lone_rows(problem, gpu)):
            return "more warps than one row needs, where SMs have several programs"
        if problem["last"] != (rows < 16) and (not _narrow(problem) if problem["last"] else rows_of(problem) > 16):
            return "rows side by side" if problem["last"] else "rows cut into less than 32 bytes"
        _, width = tile_of(config, problem["n"], element_size(problem.dtype))
        if not smallest and width < config["VECTORS"]:
            return "a block of more classes than there are"
        if rows > 1 and rows >= 2 * triton.next_power_of_2(rows_of(problem)) and rows > 16:
            return "a block with room for twice the rows there are"
        needed = config["VECTORS"] * vectors // (32 * config["num_warps"]) * live + OTHER_REGISTERS
        return registers_obstacle(needed, 32 * config["num_warps"])

    return obstacle


def default(live, of_rows, of_columns):
    """``default`` of the same pass: the config of ``of_rows`` where classes lie last, else that of ``of_columns``; with
    fewer vectors or warps where it does not fit."""
    obstacle = fits(live)

    def chosen(problem, gpu):
        first = (of_rows if problem["last"] else of_columns)(rows_of(problem), problem, gpu)
        warps = (first["num_warps"], 8, 4)
        wanted = [first | {"VECTORS": v, "num_warps": w} for v in (first["VECTORS"], 2, 1) for w in warps]
        fitting = (config for config in (*wanted, *points(SPACE)) if not obstacle(config, problem, gpu))
        return next(fitting)

    return chosen


_LONG = 4096
"""Classes from which on a row of them is enough for a program."""

_FEW = 32
"""Classes up to which a lane that reads those of a row one after the other is soon done."""

_OF_VECTORS = 8
"""Classes beyond which a lane of four vectors has one for each."""


def _of_warp(problem):
    """Elements of a vector of each of a warp's threads."""
    return _vectors({"num_warps": 1}, problem)


_LONGEST = 4 * _LONG
"""Classes of which more warps than eight read a row in several turns yet."""


def _lone_rows(problem, gpu):
    """Whether each row is long, and has an SM for itself."""
    return problem["last"] and problem["n"] >= _LONGEST and rows_of(problem) <= gpu.sms


_NARROW = 64
"""Classes of so short rows that eight of them would be less than a vector for each thread of a program."""


def _narrow(problem):
    """Whether rows are so short that a program takes as many as its threads have vectors for."""
    return problem["last"] and problem["n"] <= _NARROW


def _short_rows(m, problem, gpu):
    """Rows of a program of four warps: what its vectors have room for, 8 at most of those that are not narrow, while
    each SM has a program."""
    room = 4 * _of_warp(problem) // triton.next_power_of_2(problem["n"])
    rows = max(1, room if _narrow(problem) else min(8, room))
    while rows > 1 and m < gpu.sms * rows:
        rows //= 2
    return rows


def forward_of_rows(m, problem, gpu):
    """Of long rows one for eight warps, for four where SMs have two each: while one ends, others read
    (4096 x 32000 of bf16 with probabilities: 165 us, with four 145; H200).  A row that has an SM for itself is read by
    sixteen, since eight with 16 KiB under way wait for memory (16 x 151936 of fp16: 27.5 us, by sixteen 20.4; H200); of
    fp32 by 32 with half as many vectors each (20 x 100000: 18.3 us, by sixteen 19.6; H100).
    """
    if problem["n"] < _LONG:
        return {"BLOCK_M": _short_rows(m, problem, gpu), "VECTORS": 4, "num_warps": 4}
    if _lone_rows(problem, gpu):
        wide = element_size(problem.dtype) == 4
        return {"BLOCK_M": 1, "VECTORS": 2 if wide else 4, "num_warps": most_warps(gpu) if wide else 16}
    return {"BLOCK_M": 1, "VECTORS": 4, "num_warps": 4 if m >= 2 * gpu.sms else 8}


def forward_of_columns(m, problem, gpu):
    """A row a lane of a vector where three programs for each SM are left, of few classes one for two SMs; else several
    lanes share a row's classes, of as many warps as there are classes for.

    Where lanes share a row, more than one vector of each spills: 4 x 256 x 50176 of bf16 took 264 us, and takes 86 with
    512 rows by 8 warps (H100; torch.compile: 95).  But of few classes to exchange takes longer than to read
    (64 x 10 x 3136 of bf16: 25.3 us, and 15.3 with a row a lane; 32 x 10 x 3136: 22.1 and 11.3; H200).
    """
    of_warp = _of_warp(problem)
    if m >= (0.5 if problem["n"] <= _FEW else 3) * gpu.sms * 4 * of_warp:
        return {"BLOCK_M": 4 * of_warp, "VECTORS": 2 if problem["probabilities"] else 4, "num_warps": 4}
    rows, warps = 2 * of_warp, 8
    while rows > 32 and m < gpu.sms * 16 // warps * rows:
        rows //= 2
        warps = 8 if rows * triton.next_power_of_2(problem["n"]) >= 8 * of_warp else 4
    return {"BLOCK_M": rows, "VECTORS": 1, "num_warps": warps}


def _programs(config, m, problem):
    """Programs of the backward pass where each has one block of rows and classes."""
    lanes, width = tile_of(config, problem["n"], element_size(problem.dtype))
    return triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(problem["n"], lanes * width)


def _spread(config, m, problem, gpu):
    """``config``, but one vector of each of four warps where it leaves SMs less than four programs each: all begin at
    once (15 x 30522 of bf16: 8.1 us, and 6.5; 16 x 21 x 196 of fp16: 6.8 and 6.1; H200)."""
    few = _programs(config, m, problem) < 4 * gpu.sms
    return config | {"VECTORS": 1, "num_warps": 4} if few else config


def backward_of_rows(m, problem, gpu):
    """Two vectors of eight warps; of many rows with targets by index from four of them, since a program waits for each
    target, and then for its weight, before it begins (844 x 100277 of bf16: 146 us, and 137; H200).
    """
    if problem["n"] < _LONG:
        return {"BLOCK_M": _short_rows(m, problem, gpu), "VECTORS": 2, "num_warps": 4}
    many = m >= 4 * gpu.sms and not problem["probabilities"]
    return _spread({"BLOCK_M": 4 if many else 1, "VECTORS": 2, "num_warps": 8}, m, problem, gpu)


def backward_of_columns(m, problem, gpu):
    """Half of the rows that there is room for: programs deal out classes as well.

    All of them, and twice the vectors, of so many rows that programs are many (8 x 19 x 524288 of bf16: 145 us, and
    134; by twice the warps where classes are many: 8 x 256 x 65536 234 us, and 192; H200).  But not of many
    classes with probabilities of 16 bits, which a thread reads beside its logits (22 x 150 x 65536 of bf16: 385 us, by
    half of the rows and vectors 324; 16 x 40 x 65536: 85.6 and 67.9; H200).
    """
    rows = min(2 * _of_warp(problem), max(32, triton.next_power_of_2(m)))
    config = {"BLOCK_M": rows, "VECTORS": 2, "num_warps": 4}
    whole = {"BLOCK_M": 2 * rows, "VECTORS": 4, "num_warps": 4}
    both = problem["probabilities"] and problem["n"] > _FEW and element_size(problem.dtype) == 2
    if not both and problem["n"] > _OF_VECTORS and _programs(whole, m, problem) >= 64 * gpu.sms:
        return whole if problem["n"] <= _FEW else whole | {"num_warps": 8}
    return _spread(config, m, problem, gpu)


LANES_SPACE = {"VECTORS": (1, 2, 4), "num_warps": (1, 2, 4, 8, 16, 32)}

_SHORTEST = 128
"""Classes of a row that is worth a program of one warp; of indices, where less is read, two of these (2048 x 129 of
bf16: 8.7 us by ``stream``, 9.4; 4096 x 1001: 15.6 and 11.5; H200)."""


def handles_lanes(problem, gpu):
    if not problem["last"]:
        return "classes that are not neighbours"
    if problem["n"] * element_size(problem.dtype) % VECTOR_BYTES == 0:
        return "rows of whole vectors"
    if gpu.functional:
        return ""
    if problem["probabilities"]:
        return "short rows" if problem["n"] < _SHORTEST else ""
    return "short rows, or few" if problem["n"] < 2 * _SHORTEST or rows_of(problem) <= gpu.sms else ""


def fits_lanes(live):
    """``fits`` of a pass that keeps ``live`` numbers of each element of a block in registers."""

    def obstacle(config, problem, gpu):
        vectors, warps = config["VECTORS"], config["num_warps"]
        if warps > most_warps(gpu):
            return "more threads than a program can have"
        if vectors * warps > 1 and vectors * warps * _of_warp(problem) >= 2 * problem["n"]:
            return "a block with room for twice the classes there are"
        needed = vectors * VECTOR_BYTES // element_size(problem.dtype) * live + OTHER_REGISTERS
        return registers_obstacle(needed, 32 * warps)

    return obstacle


def lanes_default(live, of_rows):
    """``default`` of the same pass: the config of ``of_rows``, with fewer warps or else vectors if it is too large.

    (20000 x 301 of bf16: 28.5 us by two warps of a vector each, 22.4 by one of two; H200.)
    """
    obstacle = fits_lanes(live)

    def chosen(problem, gpu):
        vectors, warps = of_rows(rows_of(problem), problem, gpu)
        fitting = [config for config in points(LANES_SPACE) if not obstacle(config, problem, gpu)]
        smaller = [one for one in fitting if one["VECTORS"] <= vectors and one["num_warps"] <= warps]
        return max(smaller or fitting[:1], key=lambda one: (one["num_warps"] * one["VECTORS"], one["VECTORS"]))

    return chosen


def forward_in_lanes(m, problem, gpu):
    """(vectors, warps) as of other long rows: four warps where SMs have several rows each, more where they have one."""
    if _lone_rows(problem, gpu):
        return (2, most_warps(gpu)) if element_size(problem.dtype) == 4 else (4, 16)
    return 2, 4 if m >= 2 * gpu.sms else 8


def backward_in_lanes(m, problem, gpu):
    """(vectors, warps): two vectors of four warps, one where that leaves SMs less than four programs each."""
    few = m * triton.cdiv(problem["n"], 8 * _of_warp(problem)) < 4 * gpu.sms
    return 1 if few else 2, 4


HELD_SPACE = {"BYTES": (8, 16), "num_warps": (1, 2, 4, 8)}
"""Bytes of each thread's rows of one class."""

_HELD = 3
"""Classes up to which what the forward pass kept of rows is as much to read as they are (3 x 2 x 65536 of bf16: 6.8 us,
and 7.5 by ``blocks``; 16 x 5 x 4096 9.2 and 7.3; H200)."""

_HELD_OF_MANY = 21
"""The same of so many rows of class indices that SMs are full, with 8 bytes a thread (8 x 21 x 262144 of bf16: 59 us,
and 77 by ``blocks``; with 16 bytes 75; H200)."""


def handles_held(problem, gpu):
    if problem["last"]:
        return "classes that are neighbours"
    threads = 32 * gpu.warps_per_sm * gpu.sms
    many = not problem["probabilities"] and rows_of(problem) * element_size(problem.dtype) >= 8 * threads
    most = _HELD_OF_MANY if many or gpu.functional else _HELD
    return f"{problem['n']} classes, over {most}" if problem["n"] > most else ""


def fits_held(config, problem, gpu):
    rows = 32 * config["num_warps"] * config["BYTES"] // element_size(problem.dtype)
    if config["num_warps"] > 1 and rows >= 2 * rows_of(problem):
        return "a block with room for twice the rows there are"
    return ""


def held_default(problem, gpu):
    """Four warps where each SM has a program of them, else one."""
    many = rows_of(problem) >= gpu.sms * _vectors({"num_warps": 4}, problem)
    return {"BYTES": 16 if problem["n"] <= _HELD else 8, "num_warps": 4 if many else 1}


def handles_strips(problem, gpu):
    if not problem["last"]:
        return "classes that are not neighbours"
    if problem["probabilities"] and problem["n"] > _SHORTEST:
        return f"{problem['n']} probabilities, over {_SHORTEST}"
    return strip_configs.handles(rows_of(problem), problem, gpu)


def handles_strips_backward(problem, gpu):
    return "probabilities" if problem["probabilities"] else handles_strips(problem, gpu)


def fits_strips(config, problem, gpu):
    return strip_configs.fits(config, problem, live=2 if problem["probabilities"] else 1)


FLAT_SPACE = {"VECTORS": (1, 2, 4), "num_warps": (1, 2, 4, 8)}


def handles_flat(problem, gpu):
    return handles_strips(problem, gpu) if problem["probabilities"] else "class indices"


def fits_flat(config, problem, gpu):
    lanes = 32 * config["VECTORS"] * config["num_warps"]
    return "fewer lanes than classes" if lanes < problem["n"] and config["num_warps"] == 1 else ""


def flat_default(problem, gpu):
    """Two vectors a thread (262144 x 100 of bf16: 47 us, with one 51; H200)."""
    return {"VECTORS": 2, "num_warps": 4}
