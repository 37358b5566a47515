"""Parts that tests on a GPU share; what they measured is printed after the last of them."""

import pytest
from atlas.host import gpus
from atlas.reading.config import load_gpus

_figures: list[str] = []


@pytest.fixture
def figure():
    """``figure(text)``: a line of the summary."""
    return _figures.append


def pytest_terminal_summary(terminalreporter):
    """The figures, in the order in which they were taken."""
    if _figures:
        terminalreporter.section("measured")
        for line in _figures:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def cuda():
    """The device."""
    import torch

    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="session")
def clock(cuda):
    """The one clock, warmed up."""
    from atlas.timing import Clock

    made = Clock(cuda)
    made.warm_up()
    return made


@pytest.fixture(scope="session")
def block():
    """(name, block) of this GPU in config/gpus.yaml; skips where there is none for it."""
    import torch

    name = torch.cuda.get_device_name()
    for key, found in load_gpus().items():
        if gpus.matches(found, name):
            return key, found
    pytest.skip(f"config/gpus.yaml has no block for {name}")


@pytest.fixture
def launches(monkeypatch):
    """A list that grows by each launch through Triton's own Python: a call repeated from a recording adds none."""
    from triton.runtime.jit import JITFunction

    seen = []
    usual = JITFunction.run

    def run(self, *args, **kwargs):
        seen.append(self.fn.__name__)
        return usual(self, *args, **kwargs)

    monkeypatch.setattr(JITFunction, "run", run)
    return seen
