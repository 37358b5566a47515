"""Who follows whom: random, balanced within a block of rounds, and the same on every machine."""

import itertools
from collections import Counter

import pytest
from atlas.timing.samples import rounds, williams

NAMES = ["variant a", "variant b", "default a", "peer torch", "peer liger", "peer torch.compile", "x", "y", "z"]


def taken(names, count):
    return list(itertools.islice(rounds(names), count))


@pytest.mark.parametrize("count", range(2, 10))
def test_in_a_block_everyone_takes_every_place_and_follows_everyone_equally_often(count):
    names = NAMES[:count]
    block = count if count % 2 == 0 else 2 * count
    orders = taken(names, 3 * block)
    for first in range(0, 3 * block, block):
        part = orders[first : first + block]
        places = Counter((place, name) for order in part for place, name in enumerate(order))
        follows = Counter(pair for order in part for pair in itertools.pairwise(order))
        assert set(places.values()) == {block // count} and len(places) == count * count
        assert set(follows.values()) == {block // count} and len(follows) == count * (count - 1)


def test_a_williams_design_of_four_is_the_published_one():
    # Williams 1949, section 3: for even n one square whose first row is 1, 2, n, 3, n - 1, ...
    assert williams(4) == [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]]


def test_blocks_differ_so_that_nobody_keeps_a_neighbour_two_places_on():
    orders = taken(NAMES[:6], 60)
    blocks = [tuple(map(tuple, orders[i : i + 6])) for i in range(0, 60, 6)]
    assert len(set(blocks)) == 10
    second = Counter((order[i], order[i + 2]) for order in orders for i in range(4))
    assert len(second) == 30, "in one Williams square alone some pairs never are two apart"


def test_the_place_in_a_round_does_not_tell_the_place_in_the_next():
    orders = taken(NAMES[:4], 400)
    moved = Counter((a.index("variant a"), b.index("variant a")) for a, b in itertools.pairwise(orders))
    assert len(moved) == 16
    others = [count for (before, after), count in moved.items() if before != after]  # a block takes no place twice
    assert max(others) < 2 * min(others)


def test_the_same_names_are_taken_in_the_same_order_in_every_process():
    # Written down once: neither hashing nor another Python may enter.
    assert taken(["a", "b", "c"], 3) == [["b", "a", "c"], ["a", "b", "c"], ["a", "c", "b"]]


def test_other_names_are_taken_in_another_order():
    def places(names):
        return [[names.index(name) for name in order] for order in taken(names, 20)]

    assert places(["a", "b", "c"]) != places(["a", "b", "d"])


def test_one_alone_is_always_first():
    assert taken(["a"], 3) == [["a"]] * 3
