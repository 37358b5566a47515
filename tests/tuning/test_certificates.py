"""A certificate vouches for one config, dtype, pass, protocol and number of seeds, and for nothing else."""

import dataclasses

import pytest
import tuning_fakes as fakes
from atlas.tuning.candidates import Candidate
from atlas.tuning.certificates import Certificates
from atlas.tuning.journal import Journal
from atlas.tuning.outcome import Outcome

SEEDS = (0, 1, 2)
CERTIFIED = Outcome("ok", certificate={"cases": 4, "checks": 20, "seeds": 3})


@pytest.fixture
def journal(tmp_path):
    with Journal(tmp_path / "journal.jsonl", {"kernel_digest": "a"}, 20.0) as book:
        yield book


def subject(n=1000, **changed):
    """The problem of so many elements, and its first candidate."""
    (problem,) = fakes.problems(sizes=(n,))
    case = dataclasses.replace(problem.case, dtype=changed.pop("dtype", problem.case.dtype))
    problem = dataclasses.replace(problem, case=case, direction=changed.pop("direction", problem.direction))
    return problem, Candidate.of(changed.pop("variant", "plain"), changed.pop("config", {"tile": 16, "warps": 2}))


def asked(certificates, problem, candidate):
    """Whether a certificate had to be asked for."""
    times = []
    assert certificates.get(problem, candidate, lambda: times.append(1) or CERTIFIED) == CERTIFIED
    return bool(times)


def test_a_certificate_is_asked_for_once_whatever_the_case_and_by_the_next_run_not_at_all(journal):
    certificates = Certificates(journal, "validation/3", SEEDS)
    assert not certificates.has(*subject()) and asked(certificates, *subject())
    assert certificates.has(*subject(n=4000)) and not asked(certificates, *subject(n=4000))
    again = Certificates(journal, "validation/3", SEEDS)
    assert again.has(*subject(n=8)) and not asked(again, *subject(n=8))


@pytest.mark.parametrize(
    "other",
    [{"dtype": "bf16"}, {"direction": "backward"}, {"variant": "tiled"}, {"config": {"tile": 32, "warps": 2}}],
    ids=lambda other: next(iter(other)),
)
def test_another_dtype_pass_variant_or_config_has_a_certificate_of_its_own(journal, other):
    certificates = Certificates(journal, "validation/3", SEEDS)
    asked(certificates, *subject())
    assert not certificates.has(*subject(**other)) and asked(certificates, *subject(**other))


@pytest.mark.parametrize(
    ("protocol", "seeds"), [("validation/4", SEEDS), ("validation/3", (0, 1, 2, 3, 4))], ids=["protocol", "seeds"]
)
def test_a_certificate_of_a_laxer_validation_is_not_taken_over(journal, protocol, seeds):
    asked(Certificates(journal, "validation/3", SEEDS), *subject())
    stricter = Certificates(journal, protocol, seeds)
    assert not stricter.has(*subject()) and asked(stricter, *subject())


def test_a_document_states_a_certificate_with_its_protocol_and_none_of_a_failure(journal):
    certificates = Certificates(journal, "validation/3", SEEDS)
    stated = {"protocol": "validation/3", "cases": 4, "checks": 20, "seeds": 3}
    assert certificates.to_json(CERTIFIED) == stated
    assert certificates.to_json(dataclasses.replace(CERTIFIED, status="wrong")) is None
