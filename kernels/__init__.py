"""Triton kernels as a library: ``from kernels import softmax``.

Each file here is one kernel family, and its public function bears the file's name.  Files are imported when first
asked for, so one that does not import harms no other.
"""

import importlib
import pkgutil
import sys
import types

__all__ = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


class _Library(types.ModuleType):
    """A package whose attribute ``softmax`` is the public function of ``softmax.py``, not the module."""

    def __setattr__(self, name, value):
        if isinstance(value, types.ModuleType) and value.__name__ == f"{self.__name__}.{name}":
            value = getattr(value, name, value)
        super().__setattr__(name, value)

    def __getattr__(self, name):
        if name in __all__:
            importlib.import_module(f"{self.__name__}.{name}")
            return self.__dict__[name]
        raise AttributeError(f"kernels has no {name!r}; there are {', '.join(__all__)}")

    def __dir__(self):
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Library
