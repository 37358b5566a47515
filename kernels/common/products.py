"""What launchers and spaces of products ask of operands, cases and GPUs: layouts, precision, buffers, limits."""

from collections.abc import Callable, Iterable, Mapping

import torch
import triton
from atlas.declaration import GPU, Capability, Case, Config, element_size, gpu_of, normal
from atlas.declaration.products import allows_tf32, describable, reads_shared_memory
from atlas.operators import constant_result

LARGEST = 2**31 - 1025
"""Row, column and k offsets are 32-bit in the kernels and may pass the size by one tile."""


def check_sizes(name: str, *sizes: int) -> None:
    """Raise ValueError for a size beyond LARGEST.

    What torch.compile traces is not asked, for each comparison would be a bound that an export's own sizes do not keep:
    operators ask when they run.
    """
    if not torch.compiler.is_compiling() and max(sizes) > LARGEST:
        raise ValueError(f"{name} takes sizes up to {LARGEST}: {', '.join(map(str, sizes))}")


def fitting(cases: Iterable[Case], bytes: Callable[[Case], Mapping[str, float]], gpu: GPU) -> list[Case]:
    """The cases whose tensors take an eighth of the GPU's memory at most."""
    return [problem for problem in cases if sum(bytes(problem).values()) <= gpu.memory_bytes // 8]


def operand_bytes(problem: Case) -> dict[str, float]:
    """Bytes of A, B and C of one product."""
    m, n, k, size = problem["m"], problem["n"], problem["k"], element_size(problem.dtype)
    return {"a": m * k * size, "b": k * n * size, "c": m * n * size}


def drawn_operands(problem: Case, batch: tuple[int, ...], device, generator) -> dict:
    """Normal numbers as ``a`` [*batch, m, k] and ``b`` [*batch, k, n], in the case's layout; and ``tf32``."""
    draw = normal(problem, device, generator)

    def matrices(rows, columns, layout):
        return draw(*batch, rows, columns) if layout == "N" else draw(*batch, columns, rows).mT

    m, n, k, (of_a, of_b) = problem["m"], problem["n"], problem["k"], layout_of(problem)
    return {"a": matrices(m, k, of_a), "b": matrices(k, n, of_b), "tf32": problem.dtype == "tf32"}


def layout_of(problem: Case) -> str:
    """Two letters, of A and B: N for a matrix stored by rows, T for one stored by columns; NN unless said."""
    return dict(problem.sizes).get("layout", "NN")


def row_lengths(problem: Case) -> tuple[int, int, int]:
    """Elements of a row of A, of B and of C, where a row is what is contiguous."""
    m, n, k, (of_a, of_b) = problem["m"], problem["n"], problem["k"], layout_of(problem)
    return k if of_a == "N" else m, n if of_b == "N" else k, n


def narrow(problem: Case) -> bool:
    """Whether operands may have to be read element by element, through registers, and the loop is not pipelined.

    Triton knows of a size or stride only whether 16 divides it.
    """
    return any(length % 16 for length in (*row_lengths(problem)[:2], problem["k"]))


def narrow_by_rows(problem: Case) -> bool:
    """The same where both operands lie by rows: 16 must divide sizes for wide loads."""
    return bool(problem["n"] % 16 or problem["k"] % 16)


# Bytes of one stage of a loop: a block of A and one of B.
def stage_bytes(config: Config, problem: Case) -> int:
    return (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"] * element_size(problem.dtype)


def buffers(config: Config, problem: Case, gpu: GPU) -> int:
    """How many blocks of A and of B lie in shared memory at a time, as Triton 3.6 and 3.7 allocate them."""
    if gpu.backend == "cuda" and int(gpu.arch) < 80:
        return 1  # no asynchronous copies: the loop is not pipelined
    if reads_shared_memory(problem, gpu) and config["BLOCK_M"] >= 64:
        return config["num_stages"]
    return max(1, config["num_stages"] - 1)  # the stage in work is in registers


# Tiles of C.
def tile_count(config: Config, problem: Case) -> int:
    return triton.cdiv(problem["m"], config["BLOCK_M"]) * triton.cdiv(problem["n"], config["BLOCK_N"])


BARRIERS = 2048
"""Bytes of shared memory beside the blocks, at most: barriers and alignment."""


def fma_stages(problem: Case, gpu: GPU) -> int:
    """Stages of a loop of FMA: fp32 operands gain from asynchronous copies (1024 each way on an H200: 95 us, 68 us)."""
    return 3 if problem.dtype == "fp32" and gpu.backend == "cuda" and int(gpu.arch) >= 80 else 2


def describes(problem: Case, gpu: GPU) -> str:
    """Why ``descriptor`` and what follows from it do not take a case."""
    if problem.dtype == "fp32":
        return "fp32 in IEEE precision is bound by FMA, which no copy engine speeds up"
    if any(length * element_size(problem.dtype) % 16 for length in row_lengths(problem)):
        return "rows of A, B or C are not aligned to 16 bytes"
    return ""


@constant_result  # torch.compile compiles anew when the switch is changed
def tf32_allowed():
    """Whether fp32 operands may be multiplied as tf32, as torch is told."""
    return allows_tf32()


def wants_tf32(x):
    """Whether a product of ``x`` is to be made as tf32: of fp32 operands alone, where the caller has allowed it."""
    return x.dtype is torch.float32 and tf32_allowed()


# ``input_precision`` of ``tl.dot`` for operands like ``a``: "tf32" where that is wanted and the GPU has it.
def precision_of_product(a, tf32):
    tf32 = tf32 and a.dtype == torch.float32 and Capability.TF32 in gpu_of(a.device).capabilities
    return "tf32" if tf32 else "ieee"


# Whether a matrix lies by columns, or at least not by rows.
def by_columns(matrix):
    return matrix.stride(1) != 1


# Whether the copy engine (TMA) can read all of them, as they lie or transposed.
def all_describable(*matrices):
    return all(describable(matrix.t() if by_columns(matrix) else matrix) for matrix in matrices)
