"""Triton kernels as a library: ``from kernels import softmax, gelu``; modules of them are in :mod:`kernels.nn`.

Each file here is one kernel family.  Its public functions are those that it lists in a literal ``__all__ = [...]``;
without one it has a single one, which bears the file's name.  The lists are read from the files' text, and a file is
imported when a function of it is first asked for, so one that does not import harms no other.
"""

import importlib
import pkgutil
import re
import sys
import types
from pathlib import Path

_LIST = re.compile(r"^__all__ = [\[(]([^])]*)", re.MULTILINE)


def _functions(file: str) -> list[str]:
    """The names of a file's public functions, by its text."""
    listed = _LIST.search((Path(__file__).parent / f"{file}.py").read_text(encoding="utf-8"))
    return re.findall(r"""["'](\w+)["']""", listed[1]) if listed else [file]


_MODULES = {module.name: module.ispkg for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")}
_FILES = {name: file for file, package in _MODULES.items() if not package for name in _functions(file)}

__all__ = sorted(_FILES)


class _Library(types.ModuleType):
    """A package whose attribute ``softmax`` is the public function of ``softmax.py``, not the module."""

    def __setattr__(self, name, value):
        if isinstance(value, types.ModuleType) and _FILES.get(name) == name:
            value = getattr(value, name, value)
        super().__setattr__(name, value)

    def __getattr__(self, name):
        if name in _FILES:
            value = getattr(importlib.import_module(f"{self.__name__}.{_FILES[name]}"), name)
            setattr(self, name, value)
            return value
        if name in _MODULES:  # a package, or a file that has no function of its own name
            return importlib.import_module(f"{self.__name__}.{name}")
        raise AttributeError(f"kernels has no {name!r}; there are {', '.join(__all__)}")

    def __dir__(self):
        return sorted({*super().__dir__(), *_FILES, *_MODULES})


sys.modules[__name__].__class__ = _Library
