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
    "overlay": "Every GPU at once",
    "tuning": "Tuning",
    "build": "What the compiler made",
}
"""Figures of which each kernel has its own, named ``<name>-<kernel>``: name -> title."""

CAPTIONS = {
    "speedup": (
        "Time of the fastest peer over time of the fastest variant, geometric mean over all cases of a pass; below it, "
        "how many cases and the span from the worst to the best of them. Above 1 (blue) the kernel is faster. Cases "
        "whose only peers are weak, as the kernel's declaration says, are left out."
    ),
    "roof-fraction": (
        "What each case reaches of the roof that binds it, as the survey measured that roof on the same GPU. Larger "
        "dots are larger cases. Small cases are bound by launch latency; a case that fits the L2 cache can pass 100 %."
    ),
    "rooflines": (
        "The fastest variant of every case: arithmetic per byte of least traffic against the rate reached. Lines are "
        "roofs: solid as measured by the survey, dashed from the datasheet where the GPU has no survey. All have one "
        "scale."
    ),
    "transfer": (
        "The best configs of one GPU (row), timed on another (column), as a share of what that GPU's own best config "
        "reaches: geometric mean over the cases both GPUs tuned and whose config the second one timed as well, be it "
        "by the one sample after which its search gave it up."
    ),
    "seconds": (
        "Wall time of each stage as its document states it. A record's time was spent when and where it was measured."
    ),
    "throughput": (
        "Median throughput of each variant with its tuned config (coloured, solid) and of each peer (grey, dashed); "
        "bars span the quartiles. Dotted lines are measured roofs. GPUs of one magnitude share a row's scale; a line "
        "breaks at a case that was not timed."
    ),
    "overlay": (
        "The fastest variant on each GPU (solid) and the fastest peer there (dashed, hollow): left the rate, right "
        "what it is of that GPU's own roof. A GPU that timed no such case is named in the corner."
    ),
    "tuning": (
        "Above: the best time any config had shown so far, relative to the best at the end, against the seconds since "
        "a case's first trial; each thin line is a case, the thick one their geometric mean. Below: how many of the "
        "timed configs come within a factor of their case's best; of one given up after a single sample that counts."
    ),
    "build": (
        "One dot per compiled config, by GPU and its architecture; the black ring is a variant's default config. "
        "Colour and shape say what tl.dot became: wgmma and mma run on tensor cores, FMA does not."
    ),
}
"""How to read a figure, by its name (a kernel's figures share theirs)."""


def figure_names(kernels: Sequence[str]) -> list[str]:
    """The names, without suffix, of the files under ``results/figures/``: each is drawn as SVG and as PNG."""
    return [*OVERVIEWS, *(f"{name}-{kernel}" for kernel in kernels for name in PER_KERNEL)]
