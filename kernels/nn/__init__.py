# ruff: noqa: F401  (an editor follows the imports, Python none of them)
"""The kernels as ``torch.nn`` modules: ``from kernels.nn import RMSNorm``.

Where torch has the module, the one here is a subclass of it: parameters, initialisation, ``repr`` and state dicts are
the same, so a model is switched by its imports alone.  Arguments that the kernels do not have (``inplace=True``, class
weights, …) are refused, and what they have beyond torch (a fused residual) is a further argument of ``forward``.

Each class is imported when it is first asked for, and its kernel when it is first called: what does not import harms
no other.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .activations import GELU, Dropout, SiLU, SwiGLU
    from .attention import SelfAttention
    from .embeddings import Embedding, RotaryEmbedding
    from .linear import LayerNormLinear, Linear
    from .losses import CrossEntropyLoss, LinearCrossEntropyLoss
    from .normalisation import LayerNorm, LogSoftmax, RMSNorm, Softmax
    from .quantised_linear import LinearW4, LinearW8
    from .replacing import replace

_MODULES = {
    "CrossEntropyLoss": "losses",
    "Dropout": "activations",
    "Embedding": "embeddings",
    "GELU": "activations",
    "LayerNorm": "normalisation",
    "LayerNormLinear": "linear",
    "Linear": "linear",
    "LinearCrossEntropyLoss": "losses",
    "LinearW4": "quantised_linear",
    "LinearW8": "quantised_linear",
    "LogSoftmax": "normalisation",
    "RMSNorm": "normalisation",
    "RotaryEmbedding": "embeddings",
    "SelfAttention": "attention",
    "SiLU": "activations",
    "Softmax": "normalisation",
    "SwiGLU": "activations",
}
_FUNCTIONS = {"replace": "replacing"}

__all__ = sorted(_MODULES)


def __getattr__(name):
    file = _MODULES.get(name) or _FUNCTIONS.get(name)
    if file is None:
        raise AttributeError(f"kernels.nn has no {name!r}; there are {', '.join([*__all__, *_FUNCTIONS])}")
    value = getattr(importlib.import_module(f"{__name__}.{file}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__, *_FUNCTIONS})
