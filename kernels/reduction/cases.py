"""Problems of reduction and their references: what is tuned and timed, what validation adds, what a pass moves."""

import torch
from atlas.declaration import GPU, Case, case, edge_cases, element_size, torch_dtype

from .results import BESIDE


def _reduced(x, op):
    """x.op() along the axes that are reduced: of [outer, n, inner] the middle one, else n1 and n2."""
    if x.dim() == 3:
        return getattr(x, op)(1)
    return x.squeeze(1).max(2) if op == "max" else getattr(x, op)((1, 3))


def _among(x, result):
    """Results beside the elements of x that they are of."""
    return result[:, None] if x.dim() == 3 else result[:, None, :, None]


def reference(x, op):
    if op == "ties":
        out = _reduced(x, "amax")
        return out, _reduced(x == _among(x, out), "sum").float()
    result = _reduced(x, op)
    return tuple(result) if op == "max" else result


def backward_reference(x, op, dout, out=None, ties=None, indices=None):
    if op == "max":
        axis = 1 if x.dim() == 3 else 3
        return torch.zeros_like(x).scatter(axis, _among(x, indices), _among(x, dout))
    if op in ("sum", "mean"):
        n = x.numel() // dout.numel()
        return _among(x, dout / (n if op == "mean" else 1)).expand(x.shape)
    return (x == _among(x, out)) * _among(x, dout / ties)


def torch_forward(x, op, **_):
    """What autograd differentiates: the values alone."""
    result = _reduced(x, "amax" if op == "ties" else op)
    return result[0] if op == "max" else result


def is_strided(problem: Case) -> bool:
    """Whether x is [outer, far, between, n / far, inner / between], its fastest axis ``gap`` elements short."""
    return "far" in dict(problem.sizes)


def forward_inputs(problem: Case, device, generator):
    shape = [problem["outer"], problem["n"], problem["inner"]]
    if is_strided(problem):
        far, between = problem["far"], problem["between"]
        shape = [problem["outer"], far, problem["n"] // far, between, problem["inner"] // between]
        shape[2:4] = shape[3:1:-1]
        fastest = 3 if shape[4] == 1 else 4
        shape[fastest] += problem["gap"]
    x = torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)
    if is_strided(problem):
        x = x.narrow(fastest, 0, shape[fastest] - problem["gap"])
    if problem["op"] not in ("sum", "mean"):
        x = (4 * x).round() / 4  # several elements attain the maximum, whatever the dtype
    return {"x": x, "op": problem["op"]}


def backward_inputs(problem: Case, device, generator):
    inputs = forward_inputs(problem, device, generator)
    x, op = inputs["x"], inputs["op"]
    inputs["dout"] = torch.randn(x.shape[::2], dtype=x.dtype, device=device, generator=generator)
    if op == "max":
        inputs["indices"] = _reduced(x, "max").indices
    elif op not in ("sum", "mean"):
        inputs["out"], inputs["ties"] = reference(x, "ties")
    return inputs


def forward_bytes(problem: Case):
    """x, out, and indices or ties."""
    size, op, outputs = element_size(problem.dtype), problem["op"], problem["outer"] * problem["inner"]
    beside = {op: outputs * BESIDE[op].itemsize} if op in BESIDE else {}
    return {"x": outputs * problem["n"] * size, "out": outputs * size, **beside}


def backward_bytes(problem: Case):
    """Of sum and mean nothing: what has strides of 0 is not written."""
    size, op, outputs = element_size(problem.dtype), problem["op"], problem["outer"] * problem["inner"]
    if op in ("sum", "mean"):
        return {"dx": 0}
    needed = {"dx": outputs * problem["n"] * size, "dout": outputs * size}
    if op == "max":
        return {**needed, "indices": 8 * outputs}
    return {**needed, "x": outputs * problem["n"] * size, "out": outputs * size, "ties": 4 * outputs}


def benchmark_cases(gpu: GPU) -> list[Case]:
    """What is tuned and timed on a GPU."""
    shapes = (
        # All elements: at 2^20 launch and combination are the cost, at 2^24 a third of it.
        ("fp32", "sum", (1, 2**20, 1), (1, 2**24, 1), (1, 2**28, 1)),
        ("bf16", "sum", (1, 2**30, 1)),
        # Last axis: launch-bound, a long vocabulary of odd length, few rows that are shared, many short ones.
        ("bf16", "mean", (128, 1024, 1)),
        ("bf16", "sum", (4096, 50257, 1), (16, 2**22, 1), (2**20, 64, 1)),
        # A middle axis; the first, as for a bias's gradient; so few columns that rows are shared.
        ("bf16", "mean", (16, 2048, 4096)),
        ("bf16", "sum", (1, 8192, 5120), (1, 2**18, 128)),
        # Narrow matrices, alone and by hundreds; odd rows among a few; short odd rows.
        ("bf16", "sum", (1, 2**20, 12), (512, 2048, 33), (512, 7, 3001), (2**17, 100, 1)),
        ("bf16", "max", (256, 300, 77), (2**17, 291, 1)),
        ("fp16", "amax", (8192, 4096, 1)),
        ("bf16", "amax", (1, 16384, 5120)),
        ("bf16", "max", (4096, 32000, 1), (64, 256, 16384)),
    )
    strided = (
        # Each channel of images; heads in turn with their places; rows with gaps, as of a slice.
        ("bf16", "sum", {"outer": 1, "n": 64 * 3136, "inner": 256, "far": 64, "between": 256, "gap": 0}),
        ("bf16", "amax", {"outer": 8, "n": 2048 * 64, "inner": 32 * 2, "far": 2048, "between": 32, "gap": 0}),
        ("bf16", "mean", {"outer": 1, "n": 1000, "inner": 65536, "far": 1, "between": 65536, "gap": 24}),
    )
    largest = gpu.memory_bytes // 8 // 2  # x and its gradient in an eighth of the memory
    found = [
        case(dtype, outer=outer, n=n, inner=inner, op=op) for dtype, op, *sizes in shapes for outer, n, inner in sizes
    ]
    found += [case(dtype, **{"op": op} | sizes) for dtype, op, sizes in strided]
    return [c for c in found if c["outer"] * c["n"] * c["inner"] * element_size(c.dtype) <= largest]


EDGE_CASES = edge_cases(
    "outer n inner op",
    (
        (outer, n, inner, op, reason)
        for outer, n, inner, ops, reason in (
            (1, 1, 1, ("mean", "max"), "one element"),
            (5, 1, 3, ("amax",), "nothing to reduce: each element is its own maximum"),
            (
                1,
                20_003,
                1,
                ("sum", "ties", "max"),
                "all of an odd number of elements: a tail, and several programs for one result",
            ),
            (1, 32_768, 1, ("amax",), "all elements in whole blocks: no tail"),
            (21, 129, 1, ("mean", "max"), "odd rows, one element past a power of two"),
            (
                5,
                45_001,
                1,
                ("sum", "max"),
                "few rows that each begin elsewhere in a lane of 16 bytes: shared, with a tail",
            ),
            (16, 512, 1, ("mean", "amax", "max"), "whole tiles of rows"),
            (40, 3, 1, ("sum", "max"), "rows of fewer elements than a vector"),
            (4, 33, 65, ("sum", "mean", "ties", "max"), "odd everywhere: no row but the first starts on 16 bytes"),
            (1, 9001, 7, ("sum", "max"), "fewer columns than any block, shared by programs"),
            (3, 128, 64, ("sum", "ties"), "whole blocks of rows and columns"),
            (1, 70, 1111, ("mean", "amax"), "many columns: a program for each block of them"),
            (2, 600, 72, ("sum", "ties", "max"), "few results, shared by programs; whole lanes in a block's tail"),
            (130, 3, 40, ("mean", "max"), "many small matrices: a block holds several, the last one fewer"),
            (5, 601, 33, ("sum", "amax", "max"), "odd rows, several as one line; matrices begin elsewhere in 16 bytes"),
            (1, 2003, 10, ("mean",), "short rows, several as one line: one matrix, shared by programs"),
            (1, 4001, 12, ("sum", "ties", "max"), "few columns, shared by programs: lanes beyond them, a tail of rows"),
            (700, 3, 5, ("max",), "small odd matrices: a program holds many, and is cut within one"),
            (40, 77, 1, ("amax", "ties", "max"), "many odd rows: a block of several, cut along the row"),
        )
        for op in ops
    ),
) + edge_cases(
    "outer n inner op far between gap",
    (
        (outer, n, inner, op, far, between, gap, reason)
        for outer, far, between, length, columns, gap, ops, reason in (
            (1, 5, 6, 49, 1, 0, ("sum", "ties"), "an axis kept between two that are reduced; odd rows"),
            (2, 3, 5, 16, 8, 0, ("mean", "amax"), "kept and reduced in turn, in whole vectors"),
            (3, 7, 2, 5, 33, 4, ("sum", "ties"), "odd everywhere, and with gaps"),
            (1, 1, 37, 129, 1, 7, ("mean", "amax", "max"), "rows with gaps, each beginning elsewhere in 16 bytes"),
            (2, 1, 3, 100, 24, 8, ("sum", "max"), "columns with gaps"),
            (1, 40, 3, 1024, 1, 0, ("sum", "ties"), "few results, shared by programs"),
            (1, 1, 2, 9001, 1, 24, ("max",), "few rows with gaps, shared by programs; a tail"),
            (1, 60, 1, 64, 1, 64, ("mean", "ties"), "all elements of rows with gaps"),
            (1, 70, 4, 3, 2, 0, ("sum",), "many short pieces: a block holds several"),
            (1, 11, 9, 53, 1, 0, ("mean", "ties"), "all that is reduced in one block, with lanes beyond either end"),
            (2, 7, 5, 8, 40, 0, ("amax",), "the same of columns, in blocks that are cut"),
        )
        for op in ops
        for n, inner in ((far * length, between * columns),)
    ),
)

HUGE_CASES = (
    case("bf16", "strided offsets beyond 2^31", outer=1, n=3 * 2**20, inner=1024, op="sum", far=3, between=1024, gap=0),
    case("bf16", "all of more than 2^31 elements, and a tail", outer=1, n=2**31 + 7, inner=1, op="mean"),
    case("bf16", "row offsets beyond 2^31", outer=2**18 + 1, n=8192, inner=1, op="amax"),
    case("bf16", "column offsets beyond 2^31", outer=1, n=2**18 + 1, inner=8192, op="amax"),
    case("bf16", "odd rows as one line, offsets beyond 2^31", outer=2, n=2**25 + 1, inner=33, op="amax"),
    case("bf16", "a block whose rows are 2^30 elements apart", outer=1, n=3, inner=2**30, op="amax"),
)
