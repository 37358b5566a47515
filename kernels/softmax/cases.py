"""Problems of softmax: which are tuned and timed, which validation adds, how inputs are drawn, what a pass moves."""

import torch
from atlas.declaration import DTYPES, GPU, Case, case, element_size, elements, sweep, torch_dtype

from .references import reference


def _flag(problem: Case, name: str):
    """A flag or size that a case may not have; None then."""
    return dict(problem.sizes).get(name)


def forward_inputs(problem: Case, device, generator):
    m, n, q = problem["m"], problem["n"], _flag(problem, "q")
    shape = (m // q, q, n) if q else (m, n)
    x = torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)
    inputs = {"x": x} | ({"log": True} if _flag(problem, "log") else {})
    if _flag(problem, "causal"):
        inputs["causal"] = True
    if _flag(problem, "mask"):
        inputs["mask"] = torch.randn(shape[-2:], dtype=x.dtype, device=device, generator=generator)
    if _flag(problem, "mask") == "bool":
        inputs["mask"] = inputs["mask"] > -1.0
    return inputs


def backward_inputs(problem: Case, device, generator):
    inputs = forward_inputs(problem, device, generator)
    x = inputs["x"]
    dy = torch.randn(x.shape, dtype=x.dtype, device=device, generator=generator)
    flags = {name: inputs[name] for name in ("log", "causal") if name in inputs}
    return {"y": reference(**inputs), "dy": dy} | flags


_PLAIN = sweep(
    "m n",
    {
        "bf16": (
            (128, 1024),  # the launch is the cost
            (2**20, 10),  # few classes: rows that no vector divides, hundreds of them a program
            (2**17, 77),
            (2**17, 256),
            (4096, 1024),
            (8192, 2048),
            (4096, 5120),  # a hidden size, no power of two
            (8192, 8192),
            (4096, 32768),
            (4096, 50257),  # a vocabulary of odd length: no row but each eighth starts on 16 bytes
            (4096, 128256),  # a vocabulary that no SM's registers hold
            (1024, 262144),  # and twice that: the rows under way at once fill the L2
        ),
        "fp16": ((4096, 1024), (8192, 8192), (4096, 32768)),
        "fp32": ((4096, 1024), (8192, 8192), (4096, 32768)),
    },
    tensors=3,  # the matrices of the backward pass
)


def benchmark_cases(gpu: GPU) -> list[Case]:
    """What is tuned and timed on a GPU."""
    others = (
        case("bf16", log=True, m=4096, n=32000),  # a vocabulary, as before a loss
        case("bf16", causal=True, q=2048, m=65536, n=2048),  # scores of 32 heads
        case("bf16", mask="bool", q=2048, m=65536, n=2048),
        case("bf16", mask="bool", q=128, m=2**17, n=128),  # short rows, whose places in the mask are to be computed
    )
    return _PLAIN(gpu) + [c for c in others if 3 * elements(c) * element_size(c.dtype) <= gpu.memory_bytes // 8]


EDGE_CASES = tuple(
    case(dtype, reason, **flags, m=m, n=n)
    for dtype in DTYPES
    for m, n, flags, reason in (
        (1, 1, {}, "one element: softmax is 1 whatever it is"),
        (7, 1, {}, "rows of one element"),
        (1, 1000, {}, "one row, not a power of two"),
        (37, 129, {}, "odd rows, one element past a power of two: no row but the first starts on 16 bytes"),
        (33, 64, {}, "one row more than whole tiles of rows"),
        (1030, 10, {}, "many short rows: the last tile of them has few"),
        (130, 24, {"mask": "bool", "q": 13}, "a tile with rows of several matrices under a mask"),
        (150, 12, {"causal": True, "q": 5}, "a tile with rows of many causal matrices"),
        (3, 4097, {}, "rows one element longer than a block of the streaming variants: a tail of one"),
        (8, 2049, {}, "eight odd rows: each begins elsewhere in a lane of 16 bytes"),
        (2, 20_000, {}, "several blocks and a tail"),
        (2, 70_001, {}, "a row that two programs share, each with a tail"),
        (5, 66_000, {"log": True}, "the logarithm of rows in parts, the last of them shorter"),
        (2, 40_008, {}, "rows that clusters hold, their last programs' parts shorter"),
        (16, 32_768, {"log": True}, "the logarithm of as many rows as clusters of eight run at once, in whole tiles"),
        (6, 129, {"log": True}, "the logarithm of odd rows"),
        (3, 4104, {"log": True}, "the logarithm of several blocks"),
        (26, 13, {"causal": True, "q": 13}, "square causal scores: the first row takes one column"),
        (10, 2049, {"causal": True, "q": 5}, "fewer rows than columns: the diagonal ends in a corner, off 16 bytes"),
        (18, 64, {"mask": "bool", "q": 9}, "a mask for both matrices"),
        (4, 2051, {"mask": "added", "q": 2}, "an additive mask off 16 bytes, in several blocks"),
    )
)

# Of the shapes with as many elements one that every variant takes: n = 8192 is the longest row of backward's registers.
HUGE_CASES = (case("bf16", "row offsets beyond 2^31: one row more than 2^31 elements hold", m=2**18 + 1, n=8192),)


def _elements_read(problem: Case) -> float:
    """Elements of a matrix that are read: of causal scores those on and below the diagonal."""
    m, n, q = problem["m"], problem["n"], _flag(problem, "q")
    if not _flag(problem, "causal"):
        return m * n
    return m // q * sum(max(0, min(n, i + n - q + 1)) for i in range(q)) if q else 0


def forward_bytes(c: Case) -> dict[str, float]:
    size = element_size(c.dtype)
    found = {"x": _elements_read(c) * size, "y": c["m"] * c["n"] * size}
    if _flag(c, "mask"):
        found["mask"] = c["q"] * c["n"] * (1 if c["mask"] == "bool" else size)
    return found


def forward_flops(c: Case) -> dict[str, float]:
    taken = _elements_read(c)
    return {"max": taken, "exp(x - max)": 2 * taken, "sum": taken, "scale": taken}


def backward_bytes(c: Case) -> dict[str, float]:
    size = element_size(c.dtype)
    return {"y": _elements_read(c) * size, "dy": _elements_read(c) * size, "dx": c["m"] * c["n"] * size}


def backward_flops(c: Case) -> dict[str, float]:
    taken = _elements_read(c)
    return {"y * dy": taken, "sum": taken, "y * (dy - sum)": 2 * taken}
