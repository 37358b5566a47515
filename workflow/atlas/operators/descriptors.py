"""Host tensor descriptors in recordings: the copy engine's map of a tensor, filled once for each address.

Triton's launcher fills the maps of a call anew, in Python, which takes longer than the launch.  A map depends on the
address, shape, strides and block shape alone: in a recording all but the address are constants.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .launching import bind_context
from .recording import Described, Unrepeatable

_MOST_MAPS = 256
"""Addresses of which a recording keeps maps, for each descriptor; the caching allocator returns to a few."""

_DRIVER = "triton.backends.nvidia.driver"
"""The module whose launchers are known; in Triton 3.6 and 3.7 they wrap one that takes maps."""


class Address(int):
    """What a descriptor asks of the tensor it describes."""

    def data_ptr(self) -> int:
        """The address itself."""
        return int(self)


class Maps(dict):
    """Maps by address, filled when missed."""

    def __init__(self, fill: Callable[[int], Any]):
        super().__init__()
        self._fill = fill

    def __missing__(self, address: int) -> Any:
        if len(self) >= _MOST_MAPS:
            self.clear()
        bind_context()
        self[address] = made = self._fill(address)
        return made


def unwrapped(run: Any, described: Sequence[Described]) -> tuple[Any, list[tuple[Maps | None, tuple[int, ...]]]]:
    """``run``, the launcher of a compiled kernel, as one that takes descriptors already expanded; and their expansions.

    A descriptor is expanded into its map (None: the kernel reads through the plain address), then constants.  Raises
    :class:`~.recording.Unrepeatable` for a launcher that hands descriptors over in a way not known here.
    """
    inside = inspect.getclosurevars(run.launch) if getattr(run.launch, "__module__", "") == _DRIVER else None
    try:
        launcher, metadata = inside.nonlocals["launcher"], inside.nonlocals["tensordesc_meta"]
        expand = inside.globals["make_tensordesc_arg"]
    except (AttributeError, KeyError):
        raise Unrepeatable(
            "its kernel takes a TensorDescriptor, which this launcher hands over in an unknown way"
        ) from None
    direct = copy.copy(run)
    direct.launch = launcher
    return direct, [_expansion(form, of, expand) for form, of in zip(described, metadata, strict=True)]


def _expansion(described: Described, metadata: Any, expand: Callable[..., list]) -> tuple[Maps | None, tuple[int, ...]]:
    def fill(address: int) -> list:
        filled = copy.copy(described.form)
        filled.base = Address(address)
        return expand(filled, metadata)

    constants = tuple(fill(0)[1:]) if metadata is None else (*described.form.shape, *described.form.strides)
    return None if metadata is None else Maps(lambda address: fill(address)[0]), constants
