"""What holds of the Hopper kernels for attention without a GPU: who does which tile, and who waits for whom."""

import collections
import itertools
import math
from types import SimpleNamespace

import pytest
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus

SMS = 132


L2 = 60 * 2**20
"""Bytes of an H200's."""


def _schedule(monkeypatch, m_blocks, heads, causal, programs, head_bytes=0):
    """The tiles of each program, in its order, by the kernel's own function."""
    from kernels.attention import hopper_tiles as module

    section, schedule = module.section_for(m_blocks, programs, heads, 1, head_bytes, L2), []
    for pid in range(programs):
        language = SimpleNamespace(
            num_programs=lambda axis: programs, program_id=lambda axis, pid=pid: pid,
            maximum=max, minimum=min, where=lambda condition, a, b: a if condition else b,
        )  # fmt: skip
        monkeypatch.setattr(module, "gl", language)
        turns = -(-m_blocks * heads // programs)
        found = [module.tile_of.fn(turn, m_blocks, heads, section, causal) for turn in range(turns)]
        schedule.append([(block, head) for block, head, there in found if there])
    return schedule


@pytest.mark.parametrize(("m_blocks", "heads"), [(1, 1), (7, 5), (33, 64), (128, 16)])
@pytest.mark.parametrize("causal", [False, True])
def test_every_tile_has_one_program(monkeypatch, m_blocks, heads, causal):
    """Also where the last turn is not full, and where there are fewer tiles than multiprocessors."""
    schedule = _schedule(monkeypatch, m_blocks, heads, causal, min(SMS, m_blocks * heads))
    tiles = [tile for program in schedule for tile in program]
    assert sorted(tiles) == [(m, h) for m in range(m_blocks) for h in range(heads)]


@pytest.mark.parametrize(
    ("m_blocks", "heads"),
    [(8, 256), (32, 64), (128, 16), (29, 128), (15, 256), (59, 64), (13, 120)],  # 1024 to 16384 rows; odd lengths
)
def test_under_a_causal_mask_no_program_has_much_more_to_do_than_the_others(monkeypatch, m_blocks, heads):
    """A tile's work is its blocks of keys.  With sections that begin within a turn some programs got a third more."""
    schedule = _schedule(monkeypatch, m_blocks, heads, True, SMS, 2**16 * m_blocks)
    work = [sum(m + 1 for m, _ in program) for program in schedule]
    assert max(work) < 1.04 * sum(work) / SMS


def _sections(m_blocks, heads, group, head_bytes):
    """(heads taken together, those of whole turns)."""
    from kernels.attention.hopper_tiles import section_for, section_of

    return section_for(m_blocks, SMS, heads, group, head_bytes, L2), section_of(m_blocks, SMS)


@pytest.mark.parametrize(
    ("m_blocks", "heads", "group", "head_bytes"),
    [
        (32, 128, 1, 2**21),  # a third of the programs at most: 4096 rows, as all powers of two from 1024 on
        (29, 128, 4, 3700 * 512),  # of 128 heads at work 4 programs read each of K
        (191, 40, 1, 12200 * 640),  # no more heads than that
        (9, 64, 1, 1100 * 512),  # L2 holds K and V of all of them
        (7, 96, 1, 2**21),  # so few tiles that no other section is even
    ],
)
def test_sections_of_whole_turns_stay_where_programs_share_what_they_read(m_blocks, heads, group, head_bytes):
    section, whole = _sections(m_blocks, heads, group, head_bytes)
    assert section == whole


@pytest.mark.parametrize(
    ("m_blocks", "heads", "group", "head_bytes"),
    [(29, 128, 1, 3700 * 512), (15, 256, 1, 1900 * 512), (59, 128, 1, 7500 * 256), (29, 256, 2, 3700 * 512)],
)
def test_of_an_odd_number_of_blocks_fewer_heads_are_at_work_than_programs(m_blocks, heads, group, head_bytes):
    """All heads at once would each have one program, that reads K and V from memory."""
    section, whole = _sections(m_blocks, heads, group, head_bytes)
    assert min(whole, heads) > SMS // 3 * group >= section >= SMS // 6 * group


def test_few_programs_take_a_head_at_least_however_long_its_keys():
    """One head of 2^23 keys has no three programs to share it, nor have five of a hundred tiles."""
    from kernels.attention.hopper_tiles import section_for

    for programs in range(1, 20):
        for m_blocks, heads, group in itertools.product((1, 2, 3, 7), (1, 2, 5, 100), (1, 4)):
            assert section_for(m_blocks, programs, heads, group, 2**33, L2) >= 1


def _jobs(monkeypatch, length, s, heads, group, causal, programs, parts=1):
    """Of each program the kernel's module, as it runs there, and the sizes that all its functions take."""
    from kernels.attention import hopper_schedule as module

    m_blocks, n_blocks = 2 * -(-length // 128), -(-s // 128)
    tiles = -(-n_blocks // 2) if causal else n_blocks
    heads *= parts
    programs = min(programs, heads * tiles)
    jobs = -(-heads * tiles // programs) * (1 + causal)
    sizes = s, heads, -(-group // parts), heads, m_blocks, n_blocks, tiles, programs, jobs, parts, group
    for name in ("evens_between", "members_of"):
        monkeypatch.setattr(module, name, getattr(getattr(module, name), "fn", getattr(module, name)))
    for pid in range(programs):
        language = SimpleNamespace(
            program_id=lambda axis, pid=pid: pid, maximum=max, minimum=min, cdiv=lambda x, y: -(-x // y),
            where=lambda condition, a, b: a if condition else b,
        )  # fmt: skip
        monkeypatch.setattr(module, "gl", language)
        yield module, sizes


def _additions(monkeypatch, length, s, heads, group, causal, programs, parts=1):
    """Of each program, in its order, the (block of queries, number among those who add to it), by the kernel's own."""
    for module, sizes in _jobs(monkeypatch, length, s, heads, group, causal, programs, parts):
        m_blocks, jobs = sizes[4], sizes[8]
        found = []
        for number in range(jobs):
            head, n, first, count, there = module.job_of.fn(number, sizes, causal)
            first_head, members = module.members_of(head, sizes)
            for step in range(count * members if there else 0):
                m = module.block_of.fn(number, step % count, first, m_blocks, causal)
                rank = module.rank_of.fn(number, head, step // count, n, m, sizes, causal)
                found.append(((first_head + step // count, m), rank))
        yield found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("length", "s", "heads", "group", "programs", "parts"),
    [
        (512, 512, 7, 1, 8, 1), (1100, 700, 3, 1, 13, 1), (600, 600, 2, 4, 3, 1), (300, 300, 5, 2, SMS, 1),
        (2048, 1111, 2, 4, 3, 1), (600, 600, 2, 4, 3, 4), (554, 554, 3, 8, SMS, 3), (700, 600, 4, 7, 11, 2),
        (1100, 1100, 3, 5, 7, 3), (694, 694, 2, 7, 5, 4),
    ],
)  # fmt: skip
def test_shares_of_dq_are_added_in_an_order_and_nobody_waits_in_a_circle(
    monkeypatch, length, s, heads, group, causal, programs, parts
):
    queues = list(_additions(monkeypatch, length, s, heads, group, causal, programs, parts))
    added = collections.Counter()
    while any(queues):
        waiting = [queue[0] for queue in queues if queue]
        for queue in queues:
            while queue and added[queue[0][0]] == queue[0][1]:  # its turn has come
                added[queue.pop(0)[0]] += 1
        assert [queue[0] for queue in queues if queue] != waiting, "all wait"
    blocks = itertools.product(range(heads * group), range(2 * -(-length // 128)))
    keys = -(-s // 128)
    assert added == {block: min(block[1] // 2 + 1, keys) if causal else keys for block in blocks}


@pytest.mark.parametrize("causal", [False, True])
def test_a_block_of_all_keys_meets_its_heads_queries_from_first_to_last(monkeypatch, causal):
    """The place of a complete dQ is counted on with the steps."""
    heads = collections.Counter()
    for module, sizes in _jobs(monkeypatch, 300, 100, 9, 2, causal, 4):
        m_blocks, jobs = sizes[4], sizes[8]
        for number in range(jobs):
            head, n, first, count, there = module.job_of.fn(number, sizes, causal)
            if there:
                heads[head] += 1
                assert (n, first, count) == (0, 0, m_blocks)
                order = [module.block_of.fn(number, step, first, m_blocks, causal) for step in range(count)]
                assert order == list(range(m_blocks))
    assert heads == dict.fromkeys(range(9), 1)


@pytest.mark.parametrize(("length", "heads"), [(1024, 40), (2048, 19), (2304, 9)])
def test_causal_additions_to_a_block_of_queries_lie_two_steps_apart(monkeypatch, length, heads):
    """One takes longer than a step.  Jobs of a turn are as long together as any other's, so places are times."""
    times = collections.defaultdict(dict)
    for additions in _additions(monkeypatch, length, length, heads, 1, True, SMS):
        for time, (block, rank) in enumerate(additions):
            times[block][rank] = time
    for ranked in times.values():
        ordered = [time for _, time in sorted(ranked.items())]
        assert all(after - before >= 2 for before, after in itertools.pairwise(ordered))


@pytest.mark.parametrize("unroll", [1, 2])
@pytest.mark.parametrize(("length", "s", "group"), [(128, 100, 1), (512, 512, 1), (600, 600, 4), (1100, 300, 2)])
def test_backward_masks_the_blocks_on_the_diagonal_alone(monkeypatch, length, s, group, unroll):
    """The parts of a job are all its steps but the last ones, which look for themselves whether they need a mask."""
    for module, sizes in _jobs(monkeypatch, length, s, 2, group, True, SMS):
        for number in range(sizes[8]):
            _, n, first, count, there = module.job_of.fn(number, sizes, True)
            done, last = 0, count * group - unroll
            for part in range(2 * group if there else 0):
                diagonal, begin, end = module.part_of.fn(number, part, count, last)
                assert end <= begin or (begin == done and (end - begin) % unroll == 0)
                for step in range(begin, end):
                    within = step - part // 2 * count
                    m = module.block_of.fn(number, within, first, sizes[4], True)
                    assert diagonal == ((n + 1) * 2 * module.KEYS - 1 > m * module.ROWS) and 0 <= within < count
                done = max(done, end)
            assert done == last or not there


@pytest.mark.parametrize(("n_blocks", "m_blocks", "heads"), [(1, 1, 1), (7, 9, 5), (64, 64, 40)])
@pytest.mark.parametrize("causal", [False, True])
def test_every_block_of_keys_of_wide_heads_is_one_job(monkeypatch, n_blocks, m_blocks, heads, causal):
    """With all queries, or those that see the block."""
    from kernels.attention import hopper_keys, hopper_tiles

    programs = min(SMS, n_blocks * heads)
    sizes = 1, 1, m_blocks, n_blocks, heads, hopper_tiles.section_for(n_blocks, programs, heads, 1, 2**23, L2)
    monkeypatch.setattr(hopper_keys, "tile_of", hopper_tiles.tile_of.fn)
    found = collections.Counter()
    for pid in range(programs):
        language = SimpleNamespace(
            num_programs=lambda axis: programs, program_id=lambda axis, pid=pid: pid,
            maximum=max, minimum=min, where=lambda condition, a, b: a if condition else b,
        )  # fmt: skip
        monkeypatch.setattr(hopper_tiles, "gl", language)
        jobs = [hopper_keys.job_of.fn(turn, sizes, causal) for turn in range(-(-n_blocks * heads // programs))]
        assert all(count == m_blocks - first and first == (n if causal else 0) for n, _, first, count, _ in jobs)
        found.update((head, n) for n, head, _, _, there in jobs if there)
    assert found == dict.fromkeys(itertools.product(range(heads), range(n_blocks)), 1)


@pytest.mark.parametrize(
    ("group", "blocks", "parts"),
    [(1, 5, 1), (4, 512, 1), (7, 32, 7), (8, 64, 2), (8, 128, 1), (6, 40, 3)],  # on 132 multiprocessors
)
def test_groups_of_heads_are_dealt_out_where_blocks_of_keys_keep_few_multiprocessors_busy(group, blocks, parts):
    from kernels.attention.parts import parts_of

    assert parts_of(group, blocks, SMS) == parts


@pytest.mark.parametrize(
    ("group", "length", "d", "causal", "heads"),
    [
        (4, 4096, 128, True, 1),  # more than an L2 holds is in use where a program goes through a group
        (4, 4096, 128, False, 4),  # programs go round together
        (4, 1024, 128, True, 4),  # so short that adding up costs what it saves
        (7, 4096, 64, True, 2),  # half of the bytes: two heads a program
        (1, 4096, 64, True, 1),
    ],
)
def test_under_a_causal_mask_programs_of_long_sequences_go_through_few_heads(group, length, d, causal, heads):
    from kernels.attention.parts import most_heads

    assert most_heads(group, d, length, causal) == heads


@pytest.mark.parametrize(
    ("group", "blocks", "steps", "heads"),
    [
        (8, 36, 10, 3),  # three parts in one round, the last of two heads; eight would take three rounds
        (7, 192, 12, 4),
        (8, 32, 8, 2),
        (7, 8, 4, 1),
        (8, 600, 60, 8),  # sums would cost what they save
        (1, 5, 10, 1),
    ],
)
def test_groups_of_heads_are_dealt_out_for_few_long_rounds(group, blocks, steps, heads):
    from kernels.attention.parts import heads_of_part

    assert heads_of_part(group, blocks, steps, SMS, group) == heads
    assert heads_of_part(group, blocks, steps, SMS, 1) == 1


@pytest.mark.parametrize("d", [64, 72, 192])
def test_the_parts_of_dk_and_dv_are_added_up_where_the_gradients_lie(d):
    import torch

    from kernels.attention.parts import add_parts, sums_for

    dk, dv = (torch.full((2, 70, 3, d), math.nan, dtype=torch.bfloat16).transpose(1, 2) for _ in "kv")
    sums = sums_for(dk, 2).normal_()
    add_parts(sums, (dk, dv), 2)
    for gradient, parts in zip((dk, dv), sums, strict=True):
        torch.testing.assert_close(gradient, parts.view(2, 3, 2, 70, -1).sum(2)[..., :d].to(torch.bfloat16))


def test_backward_takes_no_more_keys_than_queries_under_a_causal_mask():
    """The first block of queries that sees a block of keys would lie behind the last one."""
    from kernels.attention import DECLARATION
    from kernels.attention.cases import sized

    gluon, hopper = DECLARATION.backward.variant("gluon"), gpu("h200", load_gpus()["h200"])
    for length, causal, dtype, d, taken in (
        (512, True, "bf16", 128, True), (511, True, "bf16", 128, False), (511, False, "fp16", 64, True),
        (512, True, "fp32", 128, False), (512, True, "bf16", 96, True), (512, False, "bf16", 100, False),
        (512, True, "bf16", 256, True), (511, True, "bf16", 256, False),
    ):  # fmt: skip
        problem = sized(dtype, "", causal, b=1, h=2, l=length, s=512, d=d)
        assert (not gluon.unsupported(problem, hopper)) is taken, problem
