"""What tests of products share: matrices, whether a product is right, and the variant that a call chooses."""

import torch
from atlas import catalog
from atlas.declaration import case
from atlas.declaration.choice import explained, exported
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from atlas.validation.problems import Problem

from kernels.matmul import DECLARATION

GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", True)}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
LAYOUTS = ["NN", "NT", "TN", "TT"]
PLAIN = {"activation": "none", "bias": True, "residual": False}
"""A linear layer that only adds its bias."""


def chosen(kernel, on, dtype, **sizes):
    """(variant, config) of a call on GPU ``on``, which fit; for an H200 of the exported, else defaults."""
    entries = exported("NVIDIA H200")[1] if on == "h200" else ()
    made = explained(catalog.load(kernel), "forward", case(dtype, **sizes), GPUS[on], entries)
    assert not made.variant.fits(made.config, case(dtype, **sizes), GPUS[on]), made
    return made.variant.name, made.config


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def laid(rows, columns, layout, dtype=torch.float32, seed=0):
    """A matrix by rows (N), or by columns (T)."""
    return (
        randn(rows, columns, dtype=dtype, seed=seed)
        if layout == "N"
        else randn(columns, rows, dtype=dtype, seed=seed).t()
    )


def judged(product, a, b):
    """What is wrong with ``product`` as a @ b, or ``""``, by the tolerances of validation."""
    (m, k), n = a.shape, b.shape[1]
    dtype = next(name for name, value in DTYPES.items() if value == a.dtype)
    inputs = {"a": a, "b": b, "tf32": False}
    problem = Problem(DECLARATION, "forward", case(dtype, m=m, n=n, k=k), torch.device("cpu"), 0, inputs)
    return problem.judge(product).reason
