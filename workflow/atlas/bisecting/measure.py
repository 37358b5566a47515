"""Time one case of one kernel in the tree on PYTHONPATH, and print the figures as a line of JSON.

Run as a script, ``python measure.py ASKED``, of whatever commit: ``ASKED`` is JSON with ``kernel direction dtype
sizes`` and, or null for what a call would run, ``variant`` and ``config``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

PEER = "torch"
"""The control: what the board or another torch changes, it shows as well."""


def measured(asked: dict[str, Any], named: str = "cuda") -> dict[str, Any]:
    """The figures of a benchmark's row on the device ``named``; ``peers``: torch's median where it does the same."""
    import torch

    from atlas import catalog
    from atlas.declaration import Case, choice
    from atlas.declaration.hardware import gpu_of
    from atlas.host import runtime
    from atlas.timing import Clock

    declaration, device = catalog.load(asked["kernel"]), torch.device(named)
    work, case = declaration.passes[asked["direction"]], Case(asked["dtype"], tuple(asked["sizes"].items()))
    if asked["variant"] is None:
        variant, config = choice.choose(declaration, asked["direction"], case, device)
    else:
        variant = next(one for one in work.variants if one.name == asked["variant"])
        config = asked["config"] or variant.default(case, gpu_of(device))
    inputs = runtime.draw(work, case, device, 0)
    thunks = {"": lambda: variant.launch(**inputs, config=config)}
    if PEER in work.peers and not work.peers[PEER].handles(case):
        thunks[PEER] = work.peers[PEER].prepare(**inputs)
    clock = Clock(device)
    clock.warm_up()
    timings = clock.interleave(thunks, min_seconds=0.2, max_samples=200)
    own = timings.pop("")
    return {
        "variant": variant.name,
        "config": dict(config),
        "median_us": own.median_us,
        "q1_us": own.q1_us,
        "q3_us": own.q3_us,
        "sm_clock_mhz": own.sm_clock_mhz,
        "throttled": own.throttled,
        "peers": {name: timing.median_us for name, timing in timings.items()},
    }


if __name__ == "__main__":
    print(json.dumps(measured(json.loads(sys.argv[1]))))
