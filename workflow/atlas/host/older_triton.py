"""What Triton 3.2 to 3.5 lack of the one that the project is written for, filled in so that all else runs with them.

A GPU's block may name an environment with such a one.  The names that the stages and launchers use are given to it:
``triton.knobs``, the hooks of a compilation, the allocator of scratch memory.  What it cannot do at all (Gluon, tensor
descriptors) is :class:`Missing` there: kernels can be imported, and a variant that uses such a name is told that this
Triton has it not.  With Triton 3.6 and later nothing is done.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl
from triton.runtime import cache
from triton.runtime.jit import JITFunction

if TYPE_CHECKING:
    from ..declaration import GPU

NAME = triton.__version__
VERSION = tuple(int(part) for part in NAME.split(".")[:2])
OLDER = VERSION < (3, 6)
"""Whether there is anything to fill in."""

_LANGUAGE = ("make_tensor_descriptor", "gather", "map_elementwise")
_MODULES = ("triton.experimental.gluon", "triton.tools.tensor_descriptor")
_DEPENDENT_LAUNCHES = ("gdc_wait", "gdc_launch_dependents")
_ON_TURING = (3, 4)
"""From here on ``tl.dot`` is no tensor cores' work on sm_75."""


class Missing(types.ModuleType):
    """Stands for a module, a class or a function that this Triton has not: its parts are missing, too.

    Modules that mention it can be imported.  What uses it inside :func:`strictly` gets NotImplementedError.
    """

    def __init__(self, name: str):
        super().__init__(name)
        self.__path__: list[str] = []  # so that modules within it can be imported

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _strict.get():
            self._refuse()
        # What it would compile is missing, too; a function that the host may call as well is left as it is.
        decorates = len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType)
        return args[0] if decorates and not self.__name__.endswith(".jit") else Missing(self.__name__)

    def _refuse(self, *_: Any) -> Any:
        raise NotImplementedError(f"Triton {NAME} has no {self.__name__}")

    __getitem__ = __iter__ = __int__ = __index__ = __len__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = __mod__ = _refuse

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __or__(self, other: Any) -> Any:  # in an annotation
        return Any

    __ror__ = __or__


_strict: ContextVar[bool] = ContextVar("strict", default=False)


@contextlib.contextmanager
def strictly() -> Iterator[None]:
    """Inside, what uses anything that is :class:`Missing` is told so."""
    token = _strict.set(True)
    try:
        yield
    finally:
        _strict.reset(token)


@functools.cache
def fill_in() -> None:
    """Do it, once a process, before anything of kernels is imported; only where it is :data:`OLDER`."""
    for name in _MODULES:
        if not _there(name):
            _pretend(name)
    for name in _LANGUAGE:
        if not hasattr(tl, name):
            setattr(tl, name, Missing(f"triton.language.{name}"))
    if not _there("triton.knobs"):
        _add_knobs()
    if not _there("triton.runtime._allocation"):
        _add_allocation()
    if not hasattr(JITFunction, "device_caches"):
        _add_device_caches()
    if not hasattr(JITFunction, "_do_compile"):
        _add_do_compile()
    _hinder_recording()
    if not hasattr(triton.runtime.driver, "_active"):
        type(triton.runtime.driver)._active = property(lambda self: vars(self)["active"])
    cuda = importlib.import_module("triton.language.extra.cuda")
    for name in _DEPENDENT_LAUNCHES:
        if not hasattr(cuda, name):
            setattr(cuda, name, _dependent_launch)
    if VERSION < _ON_TURING:
        _know_turing()


def _dependent_launch(*_: Any, **__: Any) -> None:
    """A launch that begins before the one before it has ended; only where the option ``launch_pdl`` asks for it."""
    raise NotImplementedError(f"Triton {triton.__version__} has no dependent launches")


def _there(module: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec(module) is not None
    return False


def _pretend(name: str) -> None:
    """Have a module, and all within it, be :class:`Missing` wherever it is imported."""

    class Finder:
        @staticmethod
        def find_spec(asked: str, path: Any = None, target: Any = None) -> Any:
            if asked == name or asked.startswith(f"{name}."):
                return importlib.util.spec_from_loader(asked, Finder, is_package=True)
            return None

        @staticmethod
        def create_module(spec: Any) -> types.ModuleType:
            return Missing(spec.name)

        @staticmethod
        def exec_module(module: types.ModuleType) -> None:
            pass

    parent = name.rpartition(".")[0]
    if not _there(parent):
        sys.modules[parent] = types.ModuleType(parent)
        sys.modules[parent].__path__ = []
    sys.meta_path.append(Finder)


# --- What the stages and launchers use -----------------------------------------------------------------------------


class _Runtime:
    """``triton.knobs.runtime``; a compilation's hook is the one that this Triton calls."""

    launch_enter_hook = types.SimpleNamespace(calls=())
    launch_exit_hook = types.SimpleNamespace(calls=())

    @property
    def interpret(self) -> bool:
        return os.environ.get("TRITON_INTERPRET", "0") == "1"

    @property
    def jit_cache_hook(self) -> Any:
        return JITFunction.cache_hook

    @jit_cache_hook.setter
    def jit_cache_hook(self, hook: Any) -> None:
        JITFunction.cache_hook = hook


class _Tool:
    """A program of NVIDIA's that Triton brings along."""

    def __init__(self, name: str):
        self._name = name

    @property
    def path(self) -> str:
        from triton.backends.nvidia import compiler

        return compiler._path_to_binary(self._name)[0]

    @property
    def version(self) -> str:
        from triton.backends.nvidia import compiler

        return compiler._path_to_binary(self._name)[1]


def _add_knobs() -> None:
    knobs = types.ModuleType("triton.knobs")
    knobs.runtime = _Runtime()
    knobs.compilation = types.SimpleNamespace(listener=None, always_compile=False)
    tools = {name: _Tool(name) for name in ("cuobjdump", "nvdisasm", "ptxas")}
    knobs.nvidia = types.SimpleNamespace(**tools, ptxas_blackwell=tools["ptxas"])
    knobs.cache = _Cache()
    sys.modules["triton.knobs"] = triton.knobs = knobs


class _Cache:
    """``triton.knobs.cache``: the class that keeps compiled kernels on disk."""

    _name = "__cache_cls"

    @property
    def manager_class(self) -> Any:
        return getattr(cache, self._name)

    @manager_class.setter
    def manager_class(self, manager: Any) -> None:
        setattr(cache, self._name, manager)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """What is set inside holds until the end."""
        before = self.manager_class
        try:
            yield
        finally:
            self.manager_class = before


def _add_allocation() -> None:
    """Kernels of this Triton ask for no scratch memory."""
    allocation = types.ModuleType("triton.runtime._allocation")
    allocation.NullAllocator = type("NullAllocator", (), {})
    allocation._allocator = types.SimpleNamespace(get=lambda: None)
    sys.modules["triton.runtime._allocation"] = triton.runtime._allocation = allocation


def _add_device_caches() -> None:
    """Compilations in memory under their later name; an empty one comes with the next target."""

    def caches(function: JITFunction) -> Any:
        return function.cache

    def set_caches(function: JITFunction, caches: defaultdict[Any, Any]) -> None:
        function.cache = caches if caches.default_factory is dict else defaultdict(dict)
        function.binder = None

    JITFunction.device_caches = property(caches, set_caches)


def _add_do_compile() -> None:
    """A function compiles through ``_do_compile``, and that through its ``compile``; either may be replaced."""
    create_binder = JITFunction.create_binder
    within: set[int] = set()

    def created(self: JITFunction, *args: Any) -> Any:
        found, compile_ = create_binder(self, *args), self.compile

        def through(*args: Any, **kwargs: Any) -> Any:
            if id(self) in within:
                return compile_(*args, **kwargs)
            within.add(id(self))
            try:
                return self._do_compile(*args, **kwargs)
            finally:
                within.discard(id(self))

        self.compile = through
        return found

    JITFunction.create_binder = created
    JITFunction._do_compile = lambda self, *args, **kwargs: self.compile(*args, **kwargs)


def _hinder_recording() -> None:
    """Have calls launch anew each time: launchers of this Triton take other arguments than a recording repeats."""
    begin = JITFunction.__init__

    def begun(self: JITFunction, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self.pre_run_hooks = [*self.pre_run_hooks, _nothing]  # a function with a hook is not recorded

    JITFunction.__init__ = begun


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _know_turing() -> None:
    """sm_75 has tensor cores where this Triton uses them."""
    from ..declaration import GPU, Capability

    own: Callable[[GPU], frozenset[str]] = GPU.capabilities.func

    def capabilities(gpu: GPU) -> frozenset[str]:
        return own(gpu) | ({Capability.TENSOR_CORES} if (gpu.backend, gpu.arch) == ("cuda", 75) else set())

    GPU.capabilities = functools.cached_property(capabilities)
    GPU.capabilities.__set_name__(GPU, "capabilities")
