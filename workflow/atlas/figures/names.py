"""Which figures there are and what each shows.  Snakemake asks while it parses the workflow: nothing is imported."""

from collections.abc import Sequence

OVERVIEWS = {
    "speedup": "Speed-up over the fastest peer",
    "roof-fraction": "Share of the measured roof",
    "rooflines": "Rooflines",
    "transfer": "Configs tuned on one GPU, run on another",
    "seconds": "Where the time went",
}
"""Figures about all kernels: name -> title."""

PER_KERNEL = {
    "throughput": "Throughput against size",
    "overlay": "The same kernel on every GPU",
    "tuning": "Tuning: best so far against time",
    "build": "What the compiler made",
}
"""Figures of which each kernel has its own, named ``<name>-<kernel>``: name -> title."""


def figure_names(kernels: Sequence[str]) -> list[str]:
    """The names, without suffix, of the files under ``results/figures/``: each is drawn as SVG and as PNG."""
    return [*OVERVIEWS, *(f"{name}-{kernel}" for kernel in kernels for name in PER_KERNEL)]
