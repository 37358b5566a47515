"""The kernels as ``torch.nn`` modules: ``from kernels.nn import RMSNorm``.

Where torch has the module, the one here is a subclass of it: parameters, initialisation, ``repr`` and state dicts are
the same, so a model is switched by its imports alone.  Arguments that the kernels do not have (``inplace=True``, class
weights, …) are refused, and what they have beyond torch (a fused residual) is a further argument of ``forward``.

Each class is imported with the kernel it calls when it is first asked for.
"""

import importlib

_FILES = {
    "CrossEntropyLoss": "losses",
    "Dropout": "dropout",
    "Embedding": "embedding",
    "GELU": "gelu",
    "LayerNorm": "layer_norm",
    "LayerNormLinear": "layer_norm_linear",
    "Linear": "linear",
    "LinearCrossEntropyLoss": "linear_losses",
    "LinearW4": "quantised_linear",
    "LinearW8": "quantised_linear",
    "LogSoftmax": "softmax",
    "RMSNorm": "rms_norm",
    "RotaryEmbedding": "rotary",
    "SelfAttention": "attention",
    "SiLU": "silu",
    "Softmax": "softmax",
    "SwiGLU": "swiglu",
}

__all__ = sorted(_FILES)


def __getattr__(name):
    if name not in _FILES:
        raise AttributeError(f"kernels.nn has no {name!r}; there are {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"{__name__}.{_FILES[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
