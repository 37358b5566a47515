"""Figures inside the page: each SVG as a data URI, which the page needs no other file for."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import AtlasError
from ..figures.names import CAPTIONS, OVERVIEWS, PER_KERNEL


@dataclass(frozen=True)
class Picture:
    """One figure: anchor, title, caption, and the image as a URI."""

    name: str
    title: str
    caption: str
    uri: str


def picture(folder: Path, name: str, kernel: str = "") -> Picture:
    """The figure ``name``, of ``kernel`` where each has its own; :class:`AtlasError` where it was not drawn."""
    file = f"{name}-{kernel}" if kernel else name
    path = folder / f"{file}.svg"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise AtlasError(f"{path}: no such figure; run `python -m atlas figures` first") from None
    title = f"{PER_KERNEL[name]}: {kernel}" if kernel else OVERVIEWS[name]
    return Picture(file, title, CAPTIONS[name], f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}")


def of_kernels(folder: Path, kernels: Sequence[str]) -> dict[str, list[Picture]]:
    """Each kernel's own figures."""
    return {kernel: [picture(folder, name, kernel) for name in PER_KERNEL] for kernel in kernels}
