"""Which figures there are and what each shows.  Snakemake asks while it parses the workflow: nothing is imported."""

from collections.abc import Sequence

OVERVIEWS = {
    "speedup": "Speed-up over the fastest peer",
    "roof-fraction": "Share of the measured roof",
    "rooflines": "Rooflines",
    "transfer": "Configs tuned on one GPU, run on another",
    "beyond": "Calls at cases that nobody tuned",
    "seconds": "Where the time went",
}
"""Figures about all kernels: name -> title."""

PER_KERNEL = {
    "throughput": "Throughput, and what it is of the roof",
    "providers": "Every provider beside the fastest peer",
    "tuning": "Tuning",
    "build": "What the compiler made",
}
"""Figures of which each kernel has its own, named ``<name>-<kernel>``: name -> title."""

CAPTIONS = {
    "speedup": (
        "Time of the fastest peer over time of the fastest variant, geometric mean over all cases of a pass; in "
        "brackets the worst and the best of them. Above 1 (blue) the kernel is faster. Cases "
        "whose only peers are weak, as the kernel's declaration says, are left out."
    ),
    "roof-fraction": (
        "What each case reaches of the roof that binds it, as the survey measured that roof on the same GPU. Larger "
        "dots are larger cases. Small cases are bound by launch latency; a case that fits the L2 cache can pass 100 %."
    ),
    "rooflines": (
        "The fastest variant of every case: arithmetic per byte of least traffic against the rate reached; a colour is "
        "a family of kernels. Lines are roofs: solid as measured by the survey, dashed from the datasheet where a GPU "
        "has one and no survey. A GPU with neither has no line. All have one scale. A diamond, joined to its case, "
        "stands at the bytes that DRAM moved as ncu counted them; right of the case, caches kept some."
    ),
    "transfer": (
        "The best configs of one GPU (row), timed on another (column), as a share of what that GPU's own best config "
        "reaches: geometric mean over the cases both GPUs tuned and whose config the second one timed as well, be it "
        "by the one sample after which its search gave it up. The darker, the more is lost."
    ),
    "beyond": (
        "Public functions as a user calls them, each call a mark; right of the line it is faster than the fastest peer "
        "of the same call. The cases were drawn by a fresh seed and no tuner saw them. A step is the call and its "
        "gradient. What lies beyond an edge stands on it."
    ),
    "seconds": (
        "Wall time of each stage as its document states it. A record's time was spent when and where it was measured."
    ),
    "throughput": (
        "A row is a case; sizes joined by \u00d7 are in the order that the subtitle names. Left the median rate, right "
        "what it is of the roof that binds the case, by that GPU's own survey; a GPU without one has no mark there. "
        "Filled: the fastest variant with its tuned config. Hollow: the fastest peer on that GPU."
    ),
    "providers": (
        "A row is a case that a variant was timed on. Right of the line is faster than the fastest peer; a case that "
        "no peer ran is set against its fastest variant. What lies beyond an edge stands on it. The upright bar is the "
        "measured roof of the case, where it is within the panel and the GPU has a survey."
    ),
    "tuning": (
        "Left: the best time any config had shown so far over the best at the end, geometric mean over the cases, "
        "against the seconds since a case's first trial. Right: how many of the timed configs come within a factor of "
        "their case's best; of one given up after a single sample that counts."
    ),
    "build": (
        "The compiled configs, by GPU and its architecture: a mark for each value, larger where more configs share it; "
        "the ring is a variant's default config. Colour and shape say what tl.dot became: tcgen05, wgmma and mma run "
        "on tensor cores, FMA does not."
    ),
}
"""How to read a figure, by its name (a kernel's figures share theirs)."""


def figure_names(kernels: Sequence[str]) -> list[str]:
    """The names, without suffix, of the files under ``results/figures/``: overviews, then each kernel's own."""
    return [*OVERVIEWS, *(f"{name}-{kernel}" for kernel in kernels for name in PER_KERNEL)]
