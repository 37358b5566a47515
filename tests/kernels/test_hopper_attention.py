"""What holds of the Hopper kernel for attention without a GPU: who does which tile."""

from types import SimpleNamespace

import pytest

SMS = 132


def _schedule(monkeypatch, m_blocks, heads, causal, programs):
    """The tiles of each program, in its order, by the kernel's own function."""
    from kernels.hopper import attention_forward as module

    section, schedule = module._section(m_blocks, programs), []
    for pid in range(programs):
        language = SimpleNamespace(
            num_programs=lambda axis: programs, program_id=lambda axis, pid=pid: pid,
            maximum=max, minimum=min, where=lambda condition, a, b: a if condition else b,
        )  # fmt: skip
        monkeypatch.setattr(module, "gl", language)
        turns = -(-m_blocks * heads // programs)
        found = [module._tile_of.fn(turn, m_blocks, heads, section, causal) for turn in range(turns)]
        schedule.append([(block, head) for block, head, there in found if there])
    return schedule


@pytest.mark.parametrize(("m_blocks", "heads"), [(1, 1), (7, 5), (33, 64), (128, 16)])
@pytest.mark.parametrize("causal", [False, True])
def test_every_tile_has_one_program(monkeypatch, m_blocks, heads, causal):
    """Also where the last turn is not full, and where there are fewer tiles than multiprocessors."""
    schedule = _schedule(monkeypatch, m_blocks, heads, causal, min(SMS, m_blocks * heads))
    tiles = [tile for program in schedule for tile in program]
    assert sorted(tiles) == [(m, h) for m in range(m_blocks) for h in range(heads)]


@pytest.mark.parametrize(("m_blocks", "heads"), [(8, 256), (32, 64), (128, 16)])  # 1024, 4096 and 16384 rows
def test_under_a_causal_mask_no_program_has_much_more_to_do_than_the_others(monkeypatch, m_blocks, heads):
    """A tile's work is its blocks of keys.  With sections that begin within a turn some programs got a third more."""
    schedule = _schedule(monkeypatch, m_blocks, heads, True, SMS)
    work = [sum(m + 1 for m, _ in program) for program in schedule]
    assert max(work) < 1.04 * sum(work) / SMS
