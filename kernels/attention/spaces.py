"""Which configs of the tiled kernels are worth a trial, which is each one's default, and what each cannot take."""

from atlas.declaration import GPU, Capability, Case, Config, element_size
from atlas.declaration.products import reads_shared_memory, uses_tensor_cores

from .blocks import block_d


def bytes_shared(rows, columns, problem, gpu, stages, tensors=1):
    """Bytes of shared memory: ``tensors`` blocks of ``rows`` that stay, and two blocks of ``columns`` a stage."""
    if not reads_shared_memory(problem, gpu):  # before compute capability 8.0 there is one stage
        stages = 1 if gpu.backend == "cuda" and int(gpu.arch) < 80 else max(1, stages - 1)
    return (tensors * rows + 2 * stages * columns) * block_d(problem["d"]) * element_size(problem.dtype) + 2048


def too_much_shared(shared: int, gpu: GPU) -> str:
    """Why so many bytes of shared memory cannot be had, or ``""``."""
    return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most" if shared > gpu.shared_bytes else ""


def _few_programs(rows, columns):
    """``fits`` on the interpreter, which takes as long for a small block as for a larger one."""
    few = min(rows, columns) >= 32 and max(rows, columns) <= 64
    return "" if few else "more programs than the interpreter has time for"


def _many_addresses(rows, d, threads):
    """Why a pipelined block of rows should not be read through pointers: their addresses are in registers."""
    elements = rows * d // threads
    return f"addresses of {elements} elements a thread of each block: registers spill" if elements > 32 else ""


FORWARD_SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (16, 32, 64, 128),
    "num_warps": (4, 8),
    "num_stages": (1, 2, 3),
}


def fits_forward(config: Config, problem: Case, gpu: GPU, pointers: bool = False) -> str:
    """Why a config cannot launch, or cannot be the best; ``""`` for one worth a trial."""
    rows, columns, warps, stages = (config[name] for name in FORWARD_SPACE)
    if reason := too_much_shared(bytes_shared(rows, columns, problem, gpu, stages), gpu):
        return reason
    if gpu.functional:
        return _few_programs(rows, columns)
    d = block_d(problem["d"])
    if not uses_tensor_cores(problem, gpu):
        return _forward_by_fma(rows, columns, warps, stages, d)
    if reads_shared_memory(problem, gpu):
        return forward_by_wgmma(rows, columns, warps, stages, d, pointers)
    return forward_by_mma(rows, columns, warps, stages, d)


def _forward_by_fma(rows, columns, warps, stages, d):
    if max(rows, columns) > 32 or rows * columns * d > 512 * 32 * warps:
        return "FMA holds its operands in registers: larger blocks spill"
    return "" if stages == 1 else "the loop is bound by FMA, not by latency"


def forward_by_wgmma(rows, columns, warps, stages, d, pointers):
    threads, d = 32 * warps, max(64, d)  # smaller heads are so rare that no config is tried for them alone
    if rows < 16 * warps or stages == 1:
        return "a warp multiplies at least 16 rows, while others are read"
    if columns < (64 if d <= 128 else 32):
        return "too few keys at a time"
    live = rows * (d + columns) // threads
    if not 64 <= live <= 192:
        return f"{live} sums and scores a thread: registers spill, or too little work"
    return _many_addresses(columns, d, threads) if pointers else ""


def forward_by_mma(rows, columns, warps, stages, d):
    """By the tensor cores of the GPUs whose warps each multiply for themselves, and of AMD's."""
    threads = 32 * warps
    if rows * (1.5 * d + columns) > 120 * threads:  # queries are in registers, too
        return "sums, scores and queries of a thread do not fit its registers"
    if rows * columns < 8 * threads or rows < 8 * warps:
        return "too little work a warp"
    ahead = 3 if columns <= 32 and d <= 64 else 2
    return "" if stages == ahead else "blocks of keys wait too long, or for too little"


# By the columns of a block; the best without spills of a sweep on an H200 (bf16, 16 384 tokens, Triton 3.6).
_WGMMA_DEFAULTS = {64: (64, 128, 4, 2), 128: (64, 64, 4, 3), 256: (128, 64, 8, 2)}
# Of few keys blocks of 64 leave less of the diagonal and of the tail: 571 keys of D 32, causal, 0.86 of the time.
_WGMMA_FEW_KEYS = {64: (64, 64, 4, 3)}
FEW_KEYS = 1024
_WGMMA_DEFAULTS_POINTERS = {64: (64, 64, 4, 3), 128: (128, 64, 8, 3), 256: (128, 32, 8, 3)}
# Of B200, compiled and never run: 128 rows fill its tensor memory.
_TCGEN05_DEFAULTS = {64: (128, 128, 8, 3), 128: (128, 128, 8, 2), 256: (128, 32, 8, 3)}
_TCGEN05_DEFAULTS_POINTERS = {64: (128, 64, 8, 3), 128: (128, 64, 8, 3), 256: (128, 32, 8, 3)}

# Elsewhere the first that fits.
_FORWARD_DEFAULTS = (
    (128, 64, 8, 2),
    (128, 32, 8, 2),
    (64, 32, 8, 2),
    (64, 32, 4, 2),
    (32, 32, 4, 2),
    (32, 32, 8, 1),
    (32, 32, 4, 1),
    (32, 16, 4, 1),
    (16, 16, 4, 1),
)


def forward_default(problem: Case, gpu: GPU, pointers: bool = False) -> dict[str, int]:
    if reads_shared_memory(problem, gpu):
        few_keys = _WGMMA_FEW_KEYS if problem["s"] <= FEW_KEYS else {}
        defaults = _WGMMA_DEFAULTS_POINTERS if pointers else _WGMMA_DEFAULTS | few_keys
        if Capability.WGMMA not in gpu.capabilities:
            defaults = _TCGEN05_DEFAULTS_POINTERS if pointers else _TCGEN05_DEFAULTS
        return dict(zip(FORWARD_SPACE, defaults[max(64, block_d(problem["d"]))], strict=True))
    configs = [dict(zip(FORWARD_SPACE, values, strict=True)) for values in _FORWARD_DEFAULTS]
    return next((config for config in configs if not fits_forward(config, problem, gpu)), configs[-1])


_PARTS = ("KEYS", "QUERIES")
PART_CONFIG = ("M", "N", "WARPS", "STAGES")

BACKWARD_SPACE = {
    "KEYS_M": (16, 32, 64, 128),
    "KEYS_N": (16, 32, 64, 128),
    "KEYS_WARPS": (4, 8),
    "KEYS_STAGES": (1, 2),
    "QUERIES_M": (16, 32, 64, 128),
    "QUERIES_N": (16, 32, 64, 128),
    "QUERIES_WARPS": (4, 8),
    "QUERIES_STAGES": (1, 2, 3),
}


def _fits_part(config, problem, gpu, part, pointers=False):
    """Why a config of one of backward's kernels cannot launch or spills; ``part`` is what a program owns."""
    rows, columns, warps, stages = (config[f"{part}_{name}"] for name in PART_CONFIG)
    own, other = (columns, rows) if part == "KEYS" else (rows, columns)
    if reason := too_much_shared(bytes_shared(own, other, problem, gpu, stages, tensors=2), gpu):
        return reason
    if gpu.functional:
        return _few_programs(rows, columns)
    if not uses_tensor_cores(problem, gpu):
        return _part_by_fma(own, other, warps, stages, problem)
    d = max(64, block_d(problem["d"]))  # smaller heads are so rare that no config is tried for them alone
    sums = 2 if part == "KEYS" else 1
    live = (sums * own * d + 2 * rows * columns) // (32 * warps)
    if Capability.WGMMA not in gpu.capabilities:  # tcgen05 of the other's blocks spills (Triton 3.7.1)
        return _part_by_mma(part, own, other, warps, stages, live, amd=gpu.backend == "hip")
    return _part_by_wgmma(part, own, other, warps, stages, live, d, pointers)


def _part_by_fma(own, other, warps, stages, problem):
    if max(own, other) > 16 or stages > 1:
        return "FMA holds its operands in registers: larger blocks spill"
    d = block_d(problem["d"])
    few = d < 64 or (d == 64 and problem.dtype == "fp32")  # half precision is in registers in both
    return "" if warps == (4 if few else 8) else "16 x 16 scores keep few warps busy, or registers spill"


def _part_by_wgmma(part, own, other, warps, stages, live, d, pointers):
    if own < (16 * warps if d <= 128 else 64) or other < (64 if part == "KEYS" and d <= 128 else 32):
        return "a warp multiplies at least 16 rows, and with fewer than 64 at a time the others wait"
    if stages != (3 if part == "QUERIES" and (warps == 8 or other == 128) and d <= 128 else 2):
        return "blocks wait too long, or take the shared memory of a second program"
    if not (128 if part == "KEYS" else 96) <= live <= 192:
        return f"{live} sums and scores a thread: registers spill, or too little work"
    return _many_addresses(other, d, 32 * warps) if pointers else ""


def _part_by_mma(part, own, other, warps, stages, live, amd):
    """As :func:`forward_by_mma`; AMD's compiler holds more of what is read ahead in registers."""
    least, most = (64 if part == "KEYS" and not amd else 40), (80 if amd else 96)
    ahead = 1 if amd and live > 72 else 2
    if not least <= live <= most or own < 4 * warps or own < other or other < 32 or stages != ahead:
        return "registers spill, or too little work a warp"
    return ""


def fits_backward(config: Config, problem: Case, gpu: GPU, pointers: bool = False) -> str:
    reasons = (f"{part}: {why}" for part in _PARTS if (why := _fits_part(config, problem, gpu, part, pointers)))
    return next(reasons, "")


# Of each part (BLOCK_M, BLOCK_N, warps, stages): the first that fits.  By wgmma dQ is sooner summed by small programs,
# of which several share a multiprocessor, and dK and dV with as many queries at a time as registers allow: 0.82 to 0.97
# of the time of the others of 64 columns, 0.75 to 0.8 of 256, where either spills (H100, H200).
_WGMMA_PARTS = {"KEYS": ((128, 64, 4, 2), (64, 64, 4, 2), (64, 64, 8, 2)), "QUERIES": ((64, 64, 4, 2),)}
_PART_DEFAULTS = {
    "KEYS": (
        (64, 64, 4, 2),
        (64, 128, 8, 2),
        (32, 128, 8, 2),
        (32, 64, 8, 2),
        (32, 64, 8, 1),
        (32, 32, 8, 2),
        (16, 16, 8, 1),
        (16, 16, 4, 1),
    ),
    "QUERIES": (
        (128, 64, 8, 3),
        (64, 32, 8, 2),
        (128, 32, 8, 2),
        (32, 32, 8, 2),
        (16, 16, 8, 1),
        (16, 16, 4, 1),
    ),
}


def _part_default(part, problem, gpu, pointers):
    names = [f"{part}_{name}" for name in PART_CONFIG]
    by_wgmma = _WGMMA_PARTS[part] if Capability.WGMMA in gpu.capabilities else ()
    configs = [dict(zip(names, values, strict=True)) for values in by_wgmma + _PART_DEFAULTS[part]]
    return next((config for config in configs if not _fits_part(config, problem, gpu, part, pointers)), configs[-1])


def backward_default(problem: Case, gpu: GPU, pointers: bool = False) -> dict[str, int]:
    return _part_default("KEYS", problem, gpu, pointers) | _part_default("QUERIES", problem, gpu, pointers)


def too_wide(problem: Case, gpu: GPU) -> str:
    """Why the smallest blocks of backward's kernels do not fit, or ``""``."""
    return too_much_shared(bytes_shared(16, 16, problem, gpu, 1, tensors=2), gpu)


def describes(problem: Case, gpu: GPU) -> str:
    """Why descriptors are not for a case."""
    if problem.dtype == "fp32":
        return "fp32 in IEEE precision is bound by FMA, which no copy engine speeds up"
    if problem["d"] * element_size(problem.dtype) % 16:
        return "rows of a head are not aligned to 16 bytes"
    return ""


TMA = frozenset({Capability.TENSOR_DESCRIPTORS})
HOPPER = TMA | {Capability.WGMMA}


def for_hopper(heads, problem: Case, gpu: GPU) -> str:
    """Why a Gluon kernel, which multiplies by wgmma and takes such heads, is not for a case."""
    if gpu.functional:
        return "Gluon has no interpreter"
    if problem.dtype == "fp32":
        return "for 16 bits at most"
    return "" if problem["d"] in heads else f"for heads of {', '.join(map(str, heads))}"
