"""A public function is also judged as calls in a loop come out: between guard bands nothing comes from a recording."""

import torch
from atlas.declaration import Declaration, Pass, case, eager
from atlas.validation import public
from atlas.validation.problems import Problem


class Doubling:
    """Doubles x, and from its third call on a tensor that it was given before, as a stale recording would."""

    def __init__(self):
        self.calls, self.kept = 0, None

    def __call__(self, x):
        self.calls += 1
        self.kept = x if self.kept is None else self.kept
        given = self.kept if self.calls >= 3 else x
        return given * 2


def problem(function):
    double = Pass(
        inputs=lambda c, device, generator: {"x": torch.randn(c["n"], generator=generator)},
        reference=lambda x: x * 2,
        outputs=("out",),
        variants=(),
        peers={"torch": eager(lambda x: x * 2)},
        bytes=lambda c: {"x": 4},
        flops=lambda c: {"mul": 1},
    )
    declaration = Declaration(
        name="double", family="test", summary="", call=lambda f, inputs: f(inputs["x"]), dtypes=("fp32",),
        cases=lambda gpu: [], edge_cases=(), forward=double, differentiable=("x",),
    )  # fmt: skip
    declaration.public(function)
    return Problem(declaration, "forward", case("fp32", n=64), torch.device("cpu"), 0)


def test_what_goes_wrong_from_the_third_call_on_is_found():
    function = Doubling()
    asked = problem(function)
    assert [finding.status for finding in public.check_function(asked)] == ["pass"]
    function.kept = torch.zeros(64)
    assert public._repeat_and_judge(asked).reason


def test_a_function_that_stays_right_passes():
    asked = problem(lambda x: x * 2)
    assert public._repeat_and_judge(asked).reason == ""
    assert public._repeated_gradients(asked).reason == ""


def test_a_gpu_gets_the_repeated_calls_too(monkeypatch):
    asked = problem(lambda x: x * 2)
    monkeypatch.setattr(public.devices, "synchronize", lambda device: None)
    _ = asked.inputs, asked.expected
    asked.device = type("Device", (), {"type": "cuda"})()
    monkeypatch.setattr(public, "_call_and_judge", lambda problem, inputs: public._repeat_and_judge(problem))
    assert len(list(public.check_function(asked))) == 2
