"""Operators of interpreted programs give what Triton's interpreter gives: bits, types, shapes, and what is refused."""

import os
import subprocess
import sys

from atlas import ROOT

SCRIPT = """
import hashlib
import operator
import sys
import warnings

import numpy as np
import torch
import triton
import triton.language as tl
from atlas.host import interpreter

if sys.argv[1] == "ours":
    interpreter.patch()
else:
    interpreter.leave_out_unread_checks()
warnings.simplefilter("ignore")
np.seterr(all="ignore")

TYPES = (tl.int1, tl.int8, tl.int32, tl.uint32, tl.int64, tl.float16, tl.bfloat16, tl.float32)
NUMBERS = (0, 3, -1, 2**40, 0.5, -0.0, float("inf"), 1e300, True, tl.constexpr(5))
BINARY = [getattr(operator, name) for name in (
    "add sub mul truediv floordiv mod and_ or_ xor lshift rshift lt le gt ge eq ne".split()
)]
SEEN, BASE = [], [0]


def shown(made):
    handle = made.handle
    if handle is None:
        return str(made.type)
    data = handle.data - np.uint64(BASE[0]) if made.dtype.is_ptr() else handle.data
    if made.dtype == tl.int1:  # Triton's are integers where it has broadcast one that a comparison made
        data = data.astype(bool)
    bits = hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()[:12]
    return f"{made.type} {handle.dtype} {data.dtype} {data.shape} {bits} {tuple(made.shape)}"


def note(what, compute):
    for _ in range(2):  # found out, then known
        try:
            found = shown(compute())
        except Exception as error:
            found = type(error).__name__
        SEEN.append(f"{what}: {found}")


def operands(out):
    row = tl.arange(0, 8)
    for dtype in TYPES:
        yield f"{dtype} row", (row - 3).to(dtype)
        if dtype in (tl.int1, tl.int32, tl.float32):
            yield f"{dtype} column", (row - 3).to(dtype)[:, None]
        yield f"{dtype} scalar", (tl.program_id(0) + 5).to(dtype)
    yield "less", row < 4
    yield "addresses", out + row
    yield "address", out


def pieces(out, all_of):
    row = tl.arange(0, 8)
    for name, one in all_of:
        note(f"{name} [None]", lambda: one[None, :])
        note(f"{name} [:, None]", lambda: one[:, None])
        for dtype in () if one.dtype.is_ptr() else TYPES:
            note(f"{name} to {dtype}", lambda: one.to(dtype))
            note(f"{name} cast {dtype}", lambda: tl.cast(one, dtype))
        for number in () if one.dtype.is_ptr() else NUMBERS:
            note(f"where {name} {number}", lambda: tl.where(row > 2, one, number))
            note(f"where {number} {name}", lambda: tl.where((row > 2)[:, None], number, one))
        for second, other in all_of:
            if one.dtype.is_ptr() != other.dtype.is_ptr():
                continue
            note(f"where {name} {second}", lambda: tl.where(row > 2, one, other))
            note(f"join {name} {second}", lambda: tl.join(one, other))


def memory(all_of):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int64, torch.bool):
        stored = torch.arange(64).to(dtype)
        for mask in (None, "row", "column", "scalar"):
            for other in (None, 1, 0.5, float("-inf")):
                KERNELS["load"][(1,)](stored, mask, other, f"load {dtype} {mask} {other}")
            for name, _ in all_of:
                KERNELS["store"][(1,)](stored.clone(), mask, name)


def masked(mask, row):
    masks = {"row": row < 3, "column": (row < 3)[:, None], "scalar": row.dtype == tl.int32, None: None}
    return masks[mask]


@triton.jit
def load(stored, mask: tl.constexpr, other: tl.constexpr, what: tl.constexpr):
    row = tl.arange(0, 8)
    note(what, lambda: tl.load(stored + row, masked(mask, row), other))
    note(what + " block", lambda: tl.load(stored + 8 * row[:, None] + row, masked(mask, row), other))
    note(what + " scalar", lambda: tl.load(stored + 3, None if mask is None else tl.program_id(0) == 1, other))
    note(what + " cached", lambda: tl.load(stored + row, masked(mask, row), other, eviction_policy="evict_last"))
    note(what + " wrong", lambda: tl.load(stored + row, masked(mask, row), other, eviction_policy="none"))


@triton.jit
def store(stored, mask: tl.constexpr, what: tl.constexpr):
    row = tl.arange(0, 8)
    value = dict(operands(stored))[what]
    note(f"store {what} {mask}", lambda: tl.store(stored + row, value, masked(mask, row)))
    note(f"store {what} {mask}: stored", lambda: tl.load(stored + row))
    note(f"store {what} {mask} block", lambda: tl.store(stored + 8 * row[:, None] + row, value, masked(mask, row)))
    note(f"store {what} {mask} block: stored", lambda: tl.load(stored + 8 * row[:, None] + row))


@triton.jit
def pairs(out):
    BASE[0] = out.handle.data.item()
    all_of = list(operands(out))
    for operation in BINARY:
        for name, one in all_of:
            for second, other in all_of:
                if "shift" in operation.__name__ and one.dtype != other.dtype:
                    continue  # Triton changes the operands themselves
                note(f"{operation.__name__} {name} {second}", lambda: operation(one, other))
            for number in NUMBERS:
                note(f"{operation.__name__} {name} {number}", lambda: operation(one, number))
                note(f"{operation.__name__} {number} {name}", lambda: operation(number, one))
    pieces(out, all_of)


KERNELS = {"load": load, "store": store}
given = torch.zeros(64)
pairs[(1,)](given)
memory([(f"{dtype} {shape}", None) for dtype in TYPES for shape in ("row", "scalar")])
print("\\n".join(SEEN))
"""


def test_each_operator_gives_what_tritons_own_gives(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    path = os.pathsep.join([str(ROOT / "workflow"), str(ROOT), *sys.path])
    environment = os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1"}
    words = [[sys.executable, file, whose] for whose in ("tritons", "ours")]
    ran = [subprocess.run(one, capture_output=True, text=True, check=False, env=environment) for one in words]
    assert [one.returncode for one in ran] == [0, 0], ran[0].stderr + ran[1].stderr
    expected, found = (one.stdout.splitlines() for one in ran)
    assert len(expected) > 20_000
    assert [(theirs, ours) for theirs, ours in zip(expected, found, strict=True) if theirs != ours][:20] == []
