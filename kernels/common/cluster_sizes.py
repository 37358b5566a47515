"""How many clusters of programs a GPU runs at once: those beyond that wait for a whole round."""

_AT_ONCE = {2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15}
"""Clusters, by their programs, of which each has a multiprocessor for itself, on 132 of an H200, as its driver says.

More than 8 programs CUDA does not promise of every GPU that has clusters: some refuse them, and so does MIG."""


def clusters_at_once(size: int, sms: int) -> int:
    """The most clusters of ``size`` programs at a time; 0 of sizes that are none."""
    return _AT_ONCE.get(size, 0) * sms // 132
