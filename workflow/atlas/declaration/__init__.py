"""What a kernel file may import: the words in which it declares itself.

This package is a leaf.  It imports torch, and of the project what reads a tuned file strictly (``strict.py``,
``patterns.py``, which import nothing), so that ``kernels/`` works as a library without the stages.
"""

from .cases import Case, case, element_size, torch_dtype
from .choice import choose
from .hardware import GPU, Capability, gpu_of
from .peers import Peer, compiled, compiled_gradients, cuda, eager, gradients, max_autotuned
from .types import Config, Declaration, Pass, Random, Variant

__all__ = [
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
    "eager",
    "element_size",
    "gpu_of",
    "gradients",
    "max_autotuned",
    "torch_dtype",
]
