"""A small kernel of two variants, spread over files as the real ones are, for tests of what its identities are of."""

from pathlib import Path

from atlas.identity import today

FILES = {
    "toy.py": '''
"""A toy."""

import torch
import triton
import triton.language as tl
from atlas.declaration import Declaration, Pass, Variant, case, choose, eager
from atlas.operators import launch

from kernels._toy_parts import scaled, threads

__all__ = ["toy"]
FACTOR = 2


@triton.jit
def _plain_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """One program owns BLOCK elements."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, scaled(tl.load(x_ptr + offs, mask=offs < n)), mask=offs < n)


@triton.jit
def _wide_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * FACTOR, mask=offs < n)


def _launch_plain(x, *, config):
    y = torch.empty_like(x)
    launch(_plain_kernel, (1,), x, y, x.numel(), BLOCK=config["BLOCK"], num_warps=threads(config))
    return y


def _launch_wide(x, *, config):
    y = torch.empty_like(x)
    launch(_wide_kernel, (1,), x, y, x.numel(), BLOCK=config["BLOCK"])
    return y


def _default(problem, gpu):
    return {"BLOCK": 1024}


def _reference(x):
    return x * FACTOR


def _inputs(problem, device, generator):
    return {"x": torch.randn(problem["n"], device=device, generator=generator)}


_SPACE = {"BLOCK": (512, 1024)}
_CASES = (case("fp32", n=4096),)
_EDGE_CASES = (case("fp32", "one element", n=1),)

DECLARATION = Declaration(
    name="toy",
    family="elementwise",
    summary="y = 2 x",
    call=lambda function, inputs: function(inputs["x"]),
    dtypes=("fp32",),
    cases=lambda gpu: list(_CASES),
    edge_cases=_EDGE_CASES,
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("y",),
        variants=(
            Variant(name="plain", summary="as it is", launch=_launch_plain, space=_SPACE, default=_default),
            Variant(name="wide", launch=_launch_wide, space=_SPACE, default=_default),
        ),
        peers={"torch": eager(_reference)},
        bytes=lambda c: {"x": 4 * c["n"]},
        flops=lambda c: {"x": c["n"]},
    ),
)


@DECLARATION.public
def toy(x):
    """The public function."""
    variant, config = choose(DECLARATION, "forward", case("fp32", n=x.numel()), x.device)
    return variant.launch(x, config=config)
'''.lstrip(),
    "_toy_parts.py": """
import math

import triton


@triton.jit
def scaled(x):
    return x * 2.0


def threads(config):
    return warps_for(config["BLOCK"])


def warps_for(block):
    return max(1, math.log2(block) // 3)


def unused():
    return 3
""".lstrip(),
    "user.py": """
from atlas.declaration import Declaration, Pass, Variant

from kernels.toy import toy


def _launch(x, *, config):
    return toy(x)


DECLARATION = Declaration(
    name="user",
    function=None,
    edge_cases=(),
    forward=Pass(
        inputs=None,
        reference=None,
        variants=(Variant(name="one", launch=_launch, space={}, default=lambda problem, gpu: {}),),
        peers={},
    ),
)
""".lstrip(),
}


def write(folder: Path) -> Path:
    """The files in a new folder ``kernels``."""
    kernels = folder / "kernels"
    kernels.mkdir(parents=True)
    for name, text in FILES.items():
        (kernels / name).write_text(text)
    return kernels


def edited(kernels: Path, *edits: tuple[str, str, str], of: str = "toy") -> set[str]:
    """Which identities of the toy change by edits, each (file, old, new)."""
    before = today.of_kernel(kernels, of)
    for name, old, new in edits:
        path = kernels / name
        text = path.read_text() if path.exists() else ""
        assert old in text, f"{name} does not say {old!r}"
        path.write_text(text.replace(old, new))
    after = today.of_kernel(kernels, of)
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
