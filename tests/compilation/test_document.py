"""What a build amounts to: when the rows make the document fail."""

import pytest
from atlas.compilation.space import status


def row(state, default=False, reason=""):
    return {"direction": "forward", "variant": "tiled", "dtype": "bf16", "sizes": {"m": 64, "n": 7},
            "default": default, "status": state, "reason": reason}  # fmt: skip


@pytest.mark.parametrize("state", ["failed", "pruned"])
def test_configs_that_fail_beside_a_good_default_leave_the_build_in_order(state):
    assert status([row("ok", default=True), row(state, reason="spills")]) == {"status": "ok", "reason": ""}


@pytest.mark.parametrize(("state", "told"), [("failed", "does not compile"), ("pruned", "cannot launch")])
def test_a_default_that_cannot_run_fails_the_build_and_is_named(state, told):
    found = status([row("ok"), row(state, default=True, reason="because of this")])
    assert found["status"] == "failed"
    assert found["reason"] == f"default config of tiled, forward m=64 n=7 bf16, {told}: because of this"


def test_a_build_of_nothing_but_refusals_is_unsupported_with_their_reason():
    assert status([row("unsupported", reason="no TMA")]) == {"status": "unsupported", "reason": "no TMA"}
    assert status([row("unsupported", reason="no TMA"), row("ok")])["status"] == "ok"


def test_a_build_without_a_single_case_says_so():
    assert status([]) == {"status": "unsupported", "reason": "no case fits this GPU"}
