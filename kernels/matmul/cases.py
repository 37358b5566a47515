"""What matmul is checked and measured on: its inputs, its cases and what they cost."""

from atlas.declaration import GPU, Case, case

from kernels.common.peers import by_cublaslt
from kernels.common.products import drawn_operands, fitting, operand_bytes

DTYPES = ("fp32", "tf32", "fp16", "bf16")


def reference(a, b, tf32):
    return a @ b


def prepare_cublaslt(a, b, tf32):
    return by_cublaslt(a, b)


def inputs(problem: Case, device, generator):
    return drawn_operands(problem, (), device, generator)


def sweep(gpu: GPU) -> list[Case]:
    squares = {"bf16": (512, 1024, 2048, 4096, 8192, 16384), "fp16": (4096,), "tf32": (4096,), "fp32": (4096,)}
    cases = [case(dtype, m=n, n=n, k=n) for dtype, sizes in squares.items() for n in sizes]
    cases += [
        case("bf16", reason, m=4096, n=4096, k=4096, layout=layout)
        for layout, reason in (("NT", "a linear layer"), ("TN", "the gradient of its weight"))
    ]
    cases += [
        case("bf16", "feed-forward, up, of a model 4096 wide", m=4096, n=14336, k=4096),
        case("bf16", "feed-forward, down: the long sum", m=4096, n=4096, k=14336),
    ]
    cases += [case("bf16", "few tokens: reads the weights and little else", m=m, n=8192, k=8192) for m in _SKINNY]
    cases += [
        case("bf16", "one token through a linear layer: rows of the weight are long", m=1, n=8192, k=8192, layout="NT"),
        case("bf16", "the gradient of 512 tokens through 14336 features", m=512, n=4096, k=14336),
        case("bf16", "and that of the weight", m=14336, n=4096, k=512, layout="TN"),
        case("bf16", "tens of tokens: few tiles, a long sum", m=32, n=2048, k=8192, layout="NT"),
        case("bf16", "a small weight's gradient over many tokens", m=512, n=512, k=8192, layout="TN"),
        case("bf16", "a vocabulary whose rows are off 16 bytes", m=2048, n=50257, k=1024, layout="NT"),
        case("bf16", "the gradient of its input", m=2048, n=1024, k=50257),
        case("bf16", "tiles of 128 x 256 end in a round of 18", m=6000, n=1536, k=2048, layout="NT"),
        case("bf16", "and here in one round that leaves 52 SMs idle", m=1024, n=2560, k=4000, layout="TN"),
        case("tf32", "few tiles", m=512, n=512, k=2048, layout="NT"),
        case("fp32", "few tiles, a long sum", m=512, n=512, k=2048, layout="NT"),
        case("fp32", "a small linear layer", m=1024, n=1024, k=1024, layout="NT"),
        case("fp32", "the gradient of its input", m=1024, n=1024, k=1024),
        case("fp32", "the gradient of its weight", m=1024, n=1024, k=1024, layout="TN"),
    ]
    return fitting(cases, operand_bytes, gpu)


_SKINNY = (1, 16, 128)

MAX_AUTOTUNED = (case("bf16", m=4096, n=4096, k=4096), case("bf16", m=32, n=2048, k=8192, layout="NT"))
"""A large product, and one of few tiles.  Few, since inductor compiles 20 kernels for each: some 5 s beside an H200."""

_SHAPES = {
    "one element of each": (1, 1, 1),
    "whole tiles only": (128, 128, 64),
    "tails everywhere, strides that allow no wide loads": (33, 65, 129),
    "a single row": (1, 96, 128),
    "a tail in k: the masked loop": (64, 64, 70),
    "k smaller than any block of it": (48, 40, 7),
    "a single column": (128, 1, 96),
    "a tail in m": (70, 64, 64),
    "a tail in n": (64, 70, 64),
    "more columns of tiles than rows: the last group is not full": (16, 256, 64),
    "more rows of tiles than columns": (320, 32, 16),
}

# fp32 has loops of its own (FMA, other configs), and bf16 only another instruction: they need not show again that
# tiles are in the right order.
_SHOWN = {"fp16": len(_SHAPES), "fp32": 7, "bf16": 4}

EDGE_CASES = (
    *(
        case(dtype, reason, m=m, n=n, k=k)
        for dtype, shown in _SHOWN.items()
        for reason, (m, n, k) in list(_SHAPES.items())[:shown]
    ),
    *(
        case("fp16", f"either layout and tails: {layout}", m=72, n=136, k=200, layout=layout)
        for layout in ("NT", "TN", "TT")
    ),
    case("fp16", "a row times a matrix by columns", m=1, n=72, k=200, layout="NT"),
    case("fp16", "a matrix by columns times a column", m=72, n=1, k=200, layout="TN"),
    *(
        case("fp32", f"more tiles of 64 x 64 than SMs, with tails: {layout}", m=4228, n=132, k=36, layout=layout)
        for layout in ("NN", "NT", "TN", "TT")
    ),
    *(
        case(dtype, f"few tiles and a long sum, {what}", m=20, n=n, k=k, layout=layout)
        for dtype in ("fp32", "tf32", "fp16", "bf16")
        for n, k, layout, what in (
            (24, 1032, "NT", "the last part shorter"),
            (21, 1027, "NN", "rows off 16 bytes"),
            (21, 1027, "TT", "columns off 16 bytes"),
        )
    ),
    *(
        case(dtype, f"few rows or columns times a matrix, parts with tails: {layout}", m=m, n=n, k=k, layout=layout)
        for dtype, m, n, k, layout in (
            ("fp32", 7, 70, 1300, "NT"),
            ("fp32", 2, 36, 525, "NN"),
            ("fp32", 70, 3, 524, "TN"),
            ("fp32", 13, 80, 784, "NT"),
            ("tf32", 5, 68, 1031, "NN"),
        )
    ),
    *(
        case(
            dtype,
            f"few rows or columns times a matrix off 16 bytes, or of rows across K: {layout}",
            **sizes,
            layout=layout,
        )
        for dtype, layout, sizes in (
            ("fp32", "TN", {"m": 3, "n": 131, "k": 1027}),
            ("fp32", "NN", {"m": 7, "n": 134, "k": 1300}),
            ("fp32", "NT", {"m": 13, "n": 83, "k": 1031}),
            ("fp32", "NN", {"m": 70, "n": 3, "k": 524}),
            ("tf32", "TT", {"m": 5, "n": 69, "k": 1030}),
        )
    ),
    *(
        case("fp32", f"terms of bf16, tails and rows off 16 bytes: {layout}", m=1021, n=1019, k=1037, layout=layout)
        for layout in ("NN", "NT", "TN", "TT")
    ),
    case("fp32", "terms of bf16 that lie at whole 16 bytes", m=2040, n=1016, k=1064, layout="NT"),
    case("fp32", "parts of `swizzled`'s tiles, with tails and copies", m=132, n=67, k=1027),
    *(
        case(dtype, f"a round of tiles, and columns left whose long sum is cut: {layout}", m=m, n=n, k=k, layout=layout)
        for dtype, m, n, k, layout in (("bf16", 256, 8512, 5192, "TN"), ("fp16", 222, 8760, 5632, "NT"))
    ),
    *(
        case(dtype, f"one round of tiles of {what}: {layout}", m=m, n=n, k=k, layout=layout)
        for dtype, m, n, k, layout, what in (
            ("bf16", 72, 17000, 520, "NN", "128 x 160"),
            ("fp16", 72, 17096, 192, "TT", "128 x 160, the last one with columns beyond 128"),
            ("bf16", 584, 4360, 393, "NT", "128 x 192 of copies, the last one with columns beyond 128"),
            ("fp16", 577, 4244, 72, "TN", "128 x 192, rows off 16 bytes"),
        )
    ),
    *(
        case(dtype, f"fewer tiles than of 128 x 128 cover C: {what}", m=m, n=n, k=k, layout=layout)
        for dtype, m, n, k, layout, what in (
            ("bf16", 4104, 264, 72, "NN", "of 256 x 64"),
            ("fp16", 260, 4104, 72, "NT", "of 64 x 256"),
            ("bf16", 136, 8712, 72, "NT", "one round of 64 x 256, two of 128 x 128"),
            ("fp16", 2056, 260, 72, "TN", "of 128 x 64, rows of C off 16 bytes"),
            ("bf16", 2056, 136, 4104, "NN", "of 128 x 64, in parts"),
        )
    ),
    *(
        case(dtype, f"few rows or columns, and a sum whose parts a cluster adds: {layout}", **sizes, layout=layout)
        for dtype, layout, sizes in (
            ("bf16", "NT", {"m": 24, "n": 136, "k": 4104}),
            ("fp16", "NN", {"m": 200, "n": 8, "k": 8200}),
            ("bf16", "TN", {"m": 16, "n": 328, "k": 5000}),
            ("fp16", "TT", {"m": 64, "n": 72, "k": 4112}),
            ("fp16", "NN", {"m": 72, "n": 392, "k": 1032}),
            ("bf16", "NT", {"m": 24, "n": 264, "k": 520}),
        )
    ),
    case("bf16", "few rows times a tile for each program, all of K", m=9, n=2056, k=520, layout="NT"),
    case("fp16", "the same of few columns of A", m=40, n=2056, k=520, layout="TN"),
    case("tf32", "10 bits of mantissa", m=72, n=136, k=200),
    *(
        case("tf32", f"tiles for every SM, one operand through registers: {layout}", m=m, n=n, k=k, layout=layout)
        for m, n, k, layout in ((1412, 1676, 72, "NN"), (1412, 1676, 72, "TT"), (1676, 1412, 72, "TN"))
    ),
    *(
        case("tf32", f"few tiles through registers, parts of K with tails: {layout}", m=m, n=n, k=k, layout=layout)
        for m, n, k, layout in ((69, 2052, 1031, "NN"), (1027, 132, 1540, "TT"), (516, 260, 2060, "TN"))
    ),
    case("tf32", "tiles for every SM, rows off 16 bytes, the smaller one copied", m=1157, n=1163, k=37, layout="TN"),
    *(
        case("tf32", f"few rows or columns times a small matrix, tails: {layout}", **sizes, layout=layout)
        for layout, sizes in (
            ("TN", {"m": 6, "n": 132, "k": 1028}),
            ("NN", {"m": 13, "n": 68, "k": 516}),
            ("TT", {"m": 140, "n": 7, "k": 396}),
            ("TT", {"m": 260, "n": 20, "k": 140}),
            ("TN", {"m": 40, "n": 260, "k": 516}),
            ("TT", {"m": 3, "n": 1284, "k": 72}),
        )
    ),
    case("tf32", "operands that tensor cores want transposed", m=72, n=136, k=200, layout="TN"),
    case("tf32", "the same of few tokens: columns of the copies would be off 16 bytes", m=72, n=136, k=18, layout="TN"),
    case("tf32", "and of so few that none are made", m=72, n=136, k=2, layout="TN"),
    case("fp16", "few rows times 8 MiB of rows off 16 bytes, on 4: NT", m=5, n=2061, k=2050, layout="NT"),
    case("bf16", "the same by rows, on 8, beside A on 4", m=17, n=2052, k=2054),
    *(
        case(dtype, f"few rows or columns times {what} of odd rows: {layout}", m=m, n=n, k=k, layout=layout)
        for dtype, m, n, k, layout, what in (
            ("fp16", 5, 517, 1031, "NN", "a matrix"),
            ("bf16", 5, 4099, 8205, "TN", "64 MiB"),
            ("fp16", 32771, 3, 1031, "TT", "64 MiB"),
            ("fp16", 5, 523, 1031, "NT", "a matrix"),
            ("bf16", 20, 1025, 4101, "TT", "8 MiB"),
            ("fp16", 40, 1025, 8205, "NT", "16 MiB"),
            ("fp16", 4099, 3, 1031, "NN", "8 MiB"),
        )
    ),
    *(
        case(dtype, "sums of two products, without tl.dot", m=70, n=n, k=2, layout=layout)
        for dtype, n, layout in (("fp32", 136, "TN"), ("fp16", 69, "NT"), ("bf16", 136, "NN"))
    ),
)

HUGE_CASES = (
    case("bf16", "offsets into A beyond 2^31", m=2**18 + 1, n=16, k=8192),
    case("bf16", "offsets into C beyond 2^31", m=2**18 + 1, n=8192, k=16),
)
