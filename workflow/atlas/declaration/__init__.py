"""What a kernel file may import: the words in which it declares itself.

Its modules are namespaces: ``from atlas.declaration import Declaration, Pass, Variant, cases, elementwise, peers``.
``elementwise``, ``rows`` and ``rowwise`` are loaded where they are asked for: they import Triton, which reads
TRITON_INTERPRET once.

This package is a leaf.  It imports torch, and of the project what reads a tuned file strictly (``strict.py``,
``patterns.py``, which import nothing), so that ``kernels/`` works as a library without the stages.
"""

from .cases import (
    DTYPES,
    Case,
    case,
    dtype_name,
    edge_cases,
    element_size,
    elements,
    normal,
    sweep,
    torch_dtype,
    traffic,
)
from .choice import choose
from .hardware import GPU, Capability, gpu_of
from .peers import (
    Peer,
    compiled,
    compiled_gradients,
    cuda,
    eager,
    gradients,
    max_autotune,
    max_autotuned,
    max_autotuned_gradients,
    searching,
)
from .types import Config, Declaration, Pass, Random, Variant

__all__ = [
    "DTYPES",
    "GPU",
    "Capability",
    "Case",
    "Config",
    "Declaration",
    "Pass",
    "Peer",
    "Random",
    "Variant",
    "case",
    "choose",
    "compiled",
    "compiled_gradients",
    "cuda",
    "dtype_name",
    "eager",
    "edge_cases",
    "element_size",
    "elements",
    "gpu_of",
    "gradients",
    "max_autotune",
    "max_autotuned",
    "max_autotuned_gradients",
    "normal",
    "searching",
    "sweep",
    "torch_dtype",
    "traffic",
]
