"""A sample tried on records: its few trials find what is fast, and the cases left over are chosen at by them."""

from proof_doubles import job
from test_choice_of_configs import FAST, SPECIAL, tuned

from proofs.tuning import samples

SIZES = [2**power for power in range(16, 26)]


def test_few_trials_find_what_is_fast_and_tell_of_other_cases(tmp_path):
    slow = [({"BLOCK": block, "num_warps": warps}, 3.0) for block in (2048, 4096, 8192) for warps in (1, 2, 16)]
    times = {n: (n / 1e3, (FAST, n / 1.25e3), (SPECIAL, n / 1e3), *((c, n * x / 1e3) for c, x in slow)) for n in SIZES}
    tuned(tmp_path, times)
    found = samples.run(job(samples, tmp_path))
    assert found.holds, found.broken
    row = found.rows[-1]
    assert row["kernel"] == "all" and row["best trial behind %, mean"] == 0 and row["with the sample: 95th"] == 0
    assert row["choices"] == samples.SPLITS * round((1 - samples.OWN - samples.SAMPLED) * len(SIZES))


def test_a_pass_of_few_cases_is_not_shared_out(tmp_path):
    tuned(tmp_path, {n: (n / 1e3, (FAST, n / 1.25e3)) for n in SIZES[: samples.LEAST - 1]})
    assert not samples.run(job(samples, tmp_path)).holds
