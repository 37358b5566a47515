"""A declaration in plain torch, whose configs say how long they take and whether they work."""

from atlas.declaration import GPU, Declaration, Pass, Variant, case, eager
from atlas.tuning import candidates

DEVICE = GPU("fake", "cuda", 90, sms=132, shared_bytes=232448, memory_bytes=2**37, l2_bytes=2**25)
launched = []


def launch(x, *, config):
    launched.append(dict(config))
    if config["cost_us"] in FAILURES:
        raise FAILURES[config["cost_us"]]
    return x * 2


FAILURES = {}


def inputs(problem, device, generator):
    import torch

    return {"x": torch.ones(problem["n"], device=device)}


def declaration(costs=(40, 20, 30), failures=None):
    """``failures`` maps a cost to the exception that its launch raises."""
    FAILURES.clear()
    FAILURES.update(failures or {})
    launched.clear()
    names = ("one", "other")
    variants = tuple(
        Variant(name, launch, {"cost_us": costs[index::2], "num_warps": (4,)}, default(costs[index]))
        for index, name in enumerate(names)
    )
    work = Pass(
        inputs, lambda x: x * 2, ("y",), variants, {"torch": eager(lambda x: x * 2)}, lambda _: {}, lambda _: {}
    )
    cases = [case("fp32", n=n) for n in (100, 200)]
    return Declaration(
        name="race", family="toys", summary="", function=lambda x: x * 2, dtypes=("fp32",), cases=lambda gpu: cases,
        edge_cases=(), forward=work,
    )  # fmt: skip


def default(cost):
    return lambda problem, gpu: {"cost_us": cost, "num_warps": 4}


def problems(made):
    return candidates.problems(made, DEVICE, candidates.Ruling())


def do_bench(call, quantiles):
    """As triton.testing.do_bench, by the config's own word: three quantiles in milliseconds."""
    call()
    cost = launched[-1]["cost_us"] / 1000
    return [cost, cost, cost]


class StubClock:
    """Calls each thunk and gives it 20 samples around what its config says."""

    def interleave(self, thunks, **_):
        from atlas.timing import Timing

        timings = {}
        for name, thunk in thunks.items():
            thunk()
            cost = float(launched[-1]["cost_us"])
            timings[name] = Timing(cost, cost, cost, (cost,) * 20)
        return timings
