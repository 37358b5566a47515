"""Builds part of vector_add's space for an H200 that is elsewhere, then asks what is left to compile ahead of tuning.

Run by a test in a process of its own; prints how many compilations are begun before and after the build.
"""

import functools
import json
import time
from pathlib import Path

from atlas import catalog
from atlas.compilation.compiled import compile_config
from atlas.host import gpus
from atlas.reading.config import load_gpus
from atlas.tuning.ahead import Ahead
from atlas.tuning.candidates import Ruling, problems


def main():
    gpu = gpus.gpu("h200", load_gpus()["h200"])
    load = functools.partial(catalog.load, "vector_add")
    declaration = load()
    sizes = (2**16, 2**20)
    chosen = [p for p in problems(declaration, gpu, Ruling()) if p.case.dtype == "fp32" and p.case["n"] in sizes]
    first, second, *_ = chosen[0].candidates
    wanted = [(problem, candidate) for problem in chosen for candidate in (first, second)]
    before = Ahead(load, gpu, wanted, jobs=1)
    list(before.look_up())
    compile_config(declaration, "forward", first.variant, chosen[0].case, first.config, gpu)
    half = Ahead(load, gpu, wanted, jobs=1)
    list(half.look_up())
    compile_config(declaration, "forward", second.variant, chosen[0].case, second.config, gpu)
    since = time.perf_counter()
    with Ahead(load, gpu, wanted, jobs=1) as after:
        waited = after.wait_for_any(chosen[1], [second])
        print(json.dumps({
            "tasks": [len(before.tasks), len(half.tasks), len(after.tasks)],
            "cached": [before.cached, half.cached, after.cached],
            "ready": [half.ready(chosen[1], first), half.ready(chosen[1], second), after.ready(chosen[1], second)],
            "result": after.result(chosen[1], second),
            "waited": waited,
            "children": len([path for path in Path("/proc/self/task").glob("*/children") if path.read_text()]),
            "seconds": time.perf_counter() - since,
        }))  # fmt: skip


if __name__ == "__main__":
    main()
