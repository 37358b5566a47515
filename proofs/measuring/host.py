"""What calls cost the host, beside torch's functions of the same names, at sizes that keep no GPU busy.

Where a GPU waits for the host a call takes as long as the host does: short calls and training steps of small layers.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from atlas.errors import AtlasError, in_a_line
from atlas.operators import native
from atlas.results.pieces import Pieces
from atlas.stages import frame
from torch.nn import functional as F

import kernels

from .. import scratch
from ..evidence import Evidence, at_most, none_of

CALL_US, STEP = 5.0, 1.2
"""Most microseconds that a call may take over torch's, and most of torch's training steps that one of ours may."""

ROUNDS, CALLS = 15, 40
"""Rows of calls, of ours and of torch's in turns, and calls of a row: few enough for the launch queue."""

SIZES = ((64, 256), (1024, 512), (4096, 1024))
"""Rows and columns."""

Inputs = Mapping[str, torch.Tensor]
Function = Callable[[Inputs], Any]


@dataclass(frozen=True)
class Pair:
    """A public function and torch's way to the same.

    ``shapes`` are of normally distributed inputs, of which a number stands for rows or columns by its letter (``m``,
    ``n``) or for itself.  ``kept`` names those that have no gradient; ``classes`` an input of class indices.
    """

    name: str
    shapes: Mapping[str, tuple[str | int, ...]]
    ours: Function
    torchs: Function
    kept: tuple[str, ...] = ()
    classes: str = ""

    def draw(self, m: int, n: int, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Tensor]:
        """The inputs for m rows of n columns."""
        sizes = {"m": m, "n": n}
        drawn = {
            name: torch.randn([sizes.get(size, size) for size in shape], device=device).to(dtype)
            for name, shape in self.shapes.items()
        }
        if self.classes:
            drawn[self.classes] = torch.randint(0, n, (m,), device=device)
        return drawn

    def leaves(self, drawn: Inputs) -> dict[str, torch.Tensor]:
        """The inputs of a training step."""
        fixed = {*self.kept, self.classes}
        return {name: x if name in fixed else x.detach().requires_grad_() for name, x in drawn.items()}


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    one, two = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


_MATRIX = {"x": ("m", "n")}
_TWO = {"x": ("m", "n"), "y": ("m", "n")}
_HEADS = dict.fromkeys(("q", "k", "v"), (1, 4, "m", 64))

PAIRS = (
    Pair("gelu", _MATRIX, lambda i: kernels.gelu(i["x"]), lambda i: F.gelu(i["x"])),
    Pair("silu", _MATRIX, lambda i: kernels.silu(i["x"]), lambda i: F.silu(i["x"])),
    Pair("swiglu", _TWO, lambda i: kernels.swiglu(i["x"], i["y"]), lambda i: F.silu(i["x"]) * i["y"]),
    Pair("vector_add", _TWO, lambda i: kernels.vector_add(i["x"], i["y"]), lambda i: torch.add(i["x"], i["y"])),
    Pair("multiply_add", {**_TWO, "z": ("m", "n")}, lambda i: kernels.multiply_add(i["x"], i["y"], i["z"], value=0.5),
         lambda i: torch.addcmul(i["x"], i["y"], i["z"], value=0.5)),
    Pair("dropout", _MATRIX, lambda i: kernels.dropout(i["x"], 0.1), lambda i: F.dropout(i["x"], 0.1)),
    Pair("softmax", _MATRIX, lambda i: kernels.softmax(i["x"], -1), lambda i: F.softmax(i["x"], -1)),
    Pair("log_softmax", _MATRIX, lambda i: kernels.log_softmax(i["x"], -1), lambda i: F.log_softmax(i["x"], -1)),
    Pair("layer_norm", {**_MATRIX, "w": ("n",), "b": ("n",)},
         lambda i: kernels.layer_norm(i["x"], i["w"].shape, i["w"], i["b"]),
         lambda i: F.layer_norm(i["x"], i["w"].shape, i["w"], i["b"])),
    Pair("rms_norm", {**_MATRIX, "w": ("n",)}, lambda i: kernels.rms_norm(i["x"], i["w"].shape, i["w"], 1e-5),
         lambda i: F.rms_norm(i["x"], i["w"].shape, i["w"], 1e-5)),
    Pair("layer_norm_linear", {**_MATRIX, "l": (256, "n"), "w": ("n",), "b": ("n",)},
         lambda i: kernels.layer_norm_linear(i["x"], i["l"], None, i["w"], i["b"]),
         lambda i: F.linear(F.layer_norm(i["x"], i["w"].shape, i["w"], i["b"]), i["l"])),
    Pair("cross_entropy", _MATRIX, lambda i: kernels.cross_entropy(i["x"], i["t"]),
         lambda i: F.cross_entropy(i["x"], i["t"]), classes="t"),
    Pair("linear_cross_entropy", {**_MATRIX, "l": ("n", "n")},
         lambda i: kernels.linear_cross_entropy(i["x"], i["l"], i["t"]),
         lambda i: F.cross_entropy(F.linear(i["x"], i["l"]), i["t"]), classes="t"),
    Pair("embedding", {"w": (1000, "n")}, lambda i: kernels.embedding(i["t"] % 1000, i["w"]),
         lambda i: F.embedding(i["t"] % 1000, i["w"]), classes="t"),
    Pair("sum", _MATRIX, lambda i: kernels.sum(i["x"], -1), lambda i: torch.sum(i["x"], -1)),
    Pair("mean", _MATRIX, lambda i: kernels.mean(i["x"], -1), lambda i: torch.mean(i["x"], -1)),
    Pair("amax", _MATRIX, lambda i: kernels.amax(i["x"], -1), lambda i: torch.amax(i["x"], -1)),
    Pair("max", _MATRIX, lambda i: kernels.max(i["x"], -1)[0], lambda i: torch.max(i["x"], -1)[0]),
    Pair("rope", {"x": ("m", 4, 64), "cos": ("m", 32), "sin": ("m", 32)},
         lambda i: kernels.rope(i["x"][None], i["cos"], i["sin"]), lambda i: _rotated(i["x"], i["cos"], i["sin"]),
         kept=("cos", "sin")),
    Pair("matmul", {"x": ("m", "n"), "y": ("n", 256)}, lambda i: kernels.matmul(i["x"], i["y"]),
         lambda i: torch.matmul(i["x"], i["y"])),
    Pair("bmm", {"x": (4, 64, "n"), "y": (4, "n", 64)}, lambda i: kernels.bmm(i["x"], i["y"]),
         lambda i: torch.bmm(i["x"], i["y"])),
    Pair("linear", {"x": ("m", "n"), "w": (256, "n"), "b": (256,)},
         lambda i: kernels.linear(i["x"], i["w"], i["b"]), lambda i: F.linear(i["x"], i["w"], i["b"])),
    Pair("scaled_dot_product_attention", _HEADS,
         lambda i: kernels.scaled_dot_product_attention(i["q"], i["k"], i["v"]),
         lambda i: F.scaled_dot_product_attention(i["q"], i["k"], i["v"])),
)  # fmt: skip
"""Every public function of which torch has one, or a plain way to write it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--functions``, ``--sizes`` and ``--scratch``."""
    scratch.add_folder(parser)
    parser.add_argument("--functions", default="", metavar="A,B", help="default: all that torch has, too")
    parser.add_argument("--sizes", type=int, default=len(SIZES), metavar="N", help=f"the first N of {SIZES}")


def run(job: frame.Job) -> Evidence:
    """Time calls and training steps of every pair; AtlasError on a GPU that only the interpreter stands for."""
    if job.functional:
        raise AtlasError(f"--gpu {job.gpu_name}: these are claims of speed; name a GPU of this host")
    pairs = chosen(job.arguments.functions)
    with frame.leased(job), scratch.folder(job) as folder:
        from atlas.host import runtime

        device = runtime.device_of(job.gpu_name, job.block)
        there = native.extension.ready(device)
        kept = Pieces(folder / "host.jsonl", scratch.context_of_all(job) | {"extension": there})
        rows = measured(pairs, SIZES[: job.arguments.sizes], device, kept)
    how = "by the extension" if there else f"without the extension: {native.extension.reason}"
    return evidence(rows, [f"calls are made {how}"])


def measured(
    pairs: Sequence[Pair], sizes: Sequence[tuple[int, int]], device: torch.device, kept: Pieces
) -> list[dict[str, Any]]:
    """The rows of every pair, size and dtype, each made once in ``kept``."""
    rows = []
    for (m, n), dtype, pair in itertools.product(sizes, (torch.bfloat16, torch.float32), pairs):
        made = functools.partial(rows_of, pair, m, n, dtype, device)
        rows += kept.once(f"{pair.name} {m}x{n} {dtype}", made)
    return rows


def chosen(functions: str) -> Sequence[Pair]:
    """The pairs of these names, all where none is given; AtlasError for an unknown one."""
    names = [name.strip() for name in functions.split(",") if name.strip()]
    unknown = set(names) - {pair.name for pair in PAIRS}
    if unknown:
        raise AtlasError(f"--functions: unknown {', '.join(sorted(unknown))}; "
                         f"there are {', '.join(pair.name for pair in PAIRS)}")  # fmt: skip
    return [pair for pair in PAIRS if not names or pair.name in names]


def rows_of(pair: Pair, m: int, n: int, dtype: torch.dtype, device: torch.device) -> list[dict[str, Any]]:
    """A row for the call alone and one for the training step."""
    drawn = pair.draw(m, n, dtype, device)
    leaves = pair.leaves(drawn)
    wanted = [x for x in leaves.values() if x.requires_grad]
    case, found = f"{m}x{n} {str(dtype).removeprefix('torch.')}", []
    for mode in ("call", "step"):
        row = {"function": pair.name, "mode": mode, "case": case, "us": None, "torch_us": None, "reason": ""}
        try:
            ways = [_way(function, mode, drawn, leaves, wanted) for function in (pair.ours, pair.torchs)]
            row["us"], row["torch_us"] = in_turns(ways, device)
        except Exception as error:
            row["reason"] = in_a_line(error)
        found.append(row)
    return found


def _way(function: Function, mode: str, drawn: Inputs, leaves: Inputs, wanted: Sequence[torch.Tensor]) -> Callable:
    if mode == "call":

        def call() -> None:
            with torch.no_grad():
                function(drawn)

        return call
    upstream = torch.randn_like(function(leaves))

    def step() -> None:
        torch.autograd.grad(function(leaves), wanted, upstream)

    return step


def in_turns(ways: Sequence[Callable], device: torch.device) -> list[float]:
    """Microseconds of the host for one call of each way: the median of rows that take turns."""
    rows: list[list[float]] = [[] for _ in ways]
    for way in ways:
        for _ in range(CALLS):  # compiles, records, and repeats
            way()
    gc.collect()
    for turn in range(ROUNDS):
        for number in range(len(ways)):
            number = (number + turn) % len(ways)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            began = time.perf_counter()
            for _ in range(CALLS):
                ways[number]()
            rows[number].append(1e6 * (time.perf_counter() - began) / CALLS)
    return [statistics.median(row) for row in rows]


def evidence(rows: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> Evidence:
    """The claims, of the worst call and the worst step, and every row."""
    timed = [row for row in rows if row["us"] is not None]
    over = [row["us"] - row["torch_us"] for row in timed if row["mode"] == "call"]
    times = [row["us"] / row["torch_us"] for row in timed if row["mode"] == "step"]
    claims = [
        none_of("calls that failed", (row for row in rows if row["us"] is None)),
        at_most("a call's microseconds of the host over torch's, at worst", max(over, default=None), CALL_US),
        at_most("a training step of ours in those of torch, at worst", max(times, default=None), STEP),
    ]
    shown = [
        {
            "function": row["function"],
            "mode": row["mode"],
            "case": row["case"],
            "us": row["us"],
            "torch us": row["torch_us"],
            "over": None if row["us"] is None else row["us"] - row["torch_us"],
            "times": None if row["us"] is None else row["us"] / row["torch_us"],
            "reason": row["reason"],
        }
        for row in rows
    ]
    return Evidence(claims, shown, notes)
