"""In which order several thunks take their turns: random, yet every place and every predecessor equally often."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence


def rounds(names: Sequence[str]) -> Iterator[list[str]]:
    """Orders of ``names`` without end, a fresh one each round.

    What ran before a sample moves it: by up to 0.4 % where providers kept their predecessors from round to round (H200,
    softmax of 8192 x 8192).  Plain shuffles would balance that in the long run only, and a tuner's final has 15 rounds.
    So rounds come in blocks, each a Williams design (E. J. Williams, Experimental designs balanced for the estimation
    of residual effects of treatments, Aust. J. Sci. Res. A 2, 1949, 149-168): within a block of ``len(names)`` rounds
    (twice as many for an odd number of names) every name takes every place equally often and follows every other name
    equally often.  Who is who in the design, and the order of its rounds, is drawn anew for each block.

    The draw is seeded with the names in their order: the same thunks are sampled in the same order on every machine.
    """
    generator = random.Random("\n".join(names))
    design = williams(len(names))
    while True:
        drawn = generator.sample(list(names), len(names))
        for row in generator.sample(design, len(design)):
            yield [drawn[i] for i in row]


def williams(count: int) -> list[list[int]]:
    """A Williams design of ``count`` treatments, a row a round: ``count`` rows where it is even or 1, else twice."""
    zigzag = [0]
    for step in range(1, count):
        zigzag.append((zigzag[-1] + (step if step % 2 else -step)) % count)
    square = [[(i + shift) % count for i in zigzag] for shift in range(count)]
    return square if count % 2 == 0 or count == 1 else square + [row[::-1] for row in square]
