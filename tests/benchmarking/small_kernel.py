"""A kernel in plain torch whose providers tell a sampler who they are, so that tests decide how long each takes."""

import torch
from atlas.benchmarking.measurement import Benchmark
from atlas.benchmarking.providers import Tuned
from atlas.declaration import GPU, Declaration, Pass, Peer, Variant, case
from atlas.results.surveyed import Survey
from atlas.timing import Clock
from atlas.timing.device import SilentBoard
from atlas.timing.samplers import Batch

GPU_HERE = GPU("h200", "cuda", 90, 132, 232448, 2**37, 60 * 2**20)
CASE = case("fp32", n=1000)

ROOFS = Survey({"copy": 4000.0, "read": 4400.0, "write": 4600.0, "elementwise": 4300.0, "matmul_fp32": 50.0}, 60e6)


class Sampler:
    """Calls each thunk and looks its time up by who ran last.

    One whose name says so waits for the device: it keeps no batch queued that it is in.
    """

    def __init__(self, times):
        self.times, self.last, self.order = times, None, []

    def take(self, calls, meanwhile=None):
        samples, queued = [], True
        for call in calls:
            call()
            self.order.append(self.last)
            samples.append(self.times[self.last])
            queued &= "waiting" not in self.last
        if meanwhile is not None:
            meanwhile()
        return Batch(samples, queued)

    def forget(self):
        pass

    def synchronize(self):
        pass


class Stage:
    """A kernel ``out = 2 x`` with chosen variants and peers, and a bench for it with chosen times."""

    def __init__(self, times, variants=None, peers=None, tuned=None, gpu=GPU_HERE, survey=ROOFS, weak=None):
        self.sampler = Sampler(times)
        variants = {"good": lambda x, config: 2 * x} if variants is None else variants
        peers = {"torch": lambda x: 2 * x} | (peers or {})
        self.declaration = Declaration(
            name="double",
            family="elementwise",
            summary="out = 2 x",
            function=lambda x: 2 * x,
            call=lambda function, inputs: function(inputs["x"]),
            dtypes=("fp32",),
            cases=lambda gpu: [CASE],
            edge_cases=(CASE,),
            forward=Pass(
                inputs=lambda problem, device, generator: {"x": torch.randn(problem["n"], generator=generator)},
                reference=lambda x: 2 * x,
                outputs=("out",),
                variants=tuple(self._variant(name, launch) for name, launch in variants.items()),
                peers={name: self._peer(name, peer) for name, peer in peers.items()},
                bytes=lambda c: {"x": 4 * c["n"], "out": 4 * c["n"]},
                flops=lambda c: {"double": c["n"]},
                weak=weak or {},
            ),
        )
        document = {"best": [], "trials": []} if tuned is None else tuned
        self.bench = Benchmark(
            self.declaration, gpu, torch.device("cpu"), Clock.of_parts(self.sampler, SilentBoard()),
            Tuned(document), survey, min_seconds=0.0, max_samples=20,
        )  # fmt: skip

    def _variant(self, name, launch):
        if isinstance(launch, Variant):
            return launch

        def marked(*, config, x):
            self.sampler.last = f"{name} {config['BLOCK']}"
            return launch(x, config)

        return Variant(name, marked, {"BLOCK": (1, 2, 4)}, lambda problem, gpu: {"BLOCK": 1})

    def _peer(self, name, function):
        if isinstance(function, Peer):
            return function

        def prepare(x):
            def thunk():
                self.sampler.last = name
                return function(x)

            return thunk

        return Peer(prepare)

    def rows(self):
        """The rows of the one case, by kind and name."""
        return {f"{r['provider_kind']} {r['provider']}": r for r in self.bench.rows("forward", CASE)}


def trial(config, status="ok", median_us=10.0, variant="good", rung=0, reason=""):
    """A trial of the case as an autotune document holds it."""
    return {
        "direction": "forward", **CASE.to_json(), "variant": variant, "config": config,
        "status": status, "reason": reason, "median_us": median_us if status == "ok" else None, "rung": rung,
    }  # fmt: skip


def tuned(*trials, best=None, variant="good"):
    """An autotune document of these trials."""
    chosen = [{"direction": "forward", **CASE.to_json(), "variant": variant, "config": best, "median_us": 1.0}]
    return {"best": chosen if best else [], "trials": list(trials)}
