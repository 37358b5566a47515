"""Draw every figure there is a name for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from ..host.progress import progress
from .compiled import build
from .heat import speedup, transfer
from .names import CAPTIONS, OVERVIEWS, PER_KERNEL
from .roofs import roof_fraction, rooflines
from .search import tuning
from .sheet import save
from .sizes import overlay, throughput
from .spent import seconds
from .style import RC

Tables = dict[str, pd.DataFrame]

_OVERVIEWS: dict[str, Callable[[Tables], Figure]] = {
    "speedup": speedup,
    "roof-fraction": roof_fraction,
    "rooflines": rooflines,
    "transfer": transfer,
    "seconds": seconds,
}
_PER_KERNEL: dict[str, Callable[[Tables, str], Figure]] = {
    "throughput": throughput,
    "overlay": overlay,
    "tuning": tuning,
    "build": build,
}


def draw(tables: Tables, folder: Path) -> list[str]:
    """Draw all figures into ``folder``, as SVG and PNG; returns their names.

    A kernel has figures if the coverage table knows it.  A figure without data says in a sentence why it is empty.
    """
    kernels = sorted(tables["coverage"].kernel.dropna().unique())
    jobs = [(name, OVERVIEWS[name], name, lambda tables, name=name: _OVERVIEWS[name](tables)) for name in OVERVIEWS]
    jobs += [
        (f"{name}-{kernel}", f"{PER_KERNEL[name]}: {kernel}", name,
         lambda tables, name=name, kernel=kernel: _PER_KERNEL[name](tables, kernel))
        for kernel in kernels
        for name in PER_KERNEL
    ]  # fmt: skip
    with matplotlib.rc_context(RC), progress() as shown:
        task = shown.add_task("figures", total=len(jobs), note="")
        for file, title, kind, figure in jobs:
            shown.update(task, note=file)
            save(figure(tables), folder, file, title, CAPTIONS[kind])
            shown.advance(task)
    return [file for file, *_ in jobs]
