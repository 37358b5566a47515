"""Compiles part of vector_add's space for an H200 that is elsewhere; run by a test in a process of its own."""

import contextlib
import functools
import json
import os
import time

import psutil
from atlas import catalog
from atlas.host import gpus
from atlas.reading.config import load_gpus
from atlas.tuning import ahead as ahead_module
from atlas.tuning.ahead import Ahead
from atlas.tuning.candidates import Candidate, Ruling, problems


def noted():
    """The tasks that are given to the pool from now on."""
    tasks = []
    compile_all = ahead_module.compile_all

    def note(given, *how, **more):
        return compile_all((tasks.append(task) or task for task in given), *how, **more)

    ahead_module.compile_all = note
    return tasks


def descendants(pid):
    """The names of all processes below one; of one that has ended meanwhile none."""
    names = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            names.append(child.name())
    return names


def main():
    gpu = gpus.gpu("h200", load_gpus()["h200"])
    load = functools.partial(catalog.load, "vector_add")
    chosen = [p for p in problems(load(), gpu, Ruling()) if p.case.dtype == "fp32" and p.case["n"] in (2**16, 2**20)]
    fit, other = chosen[0].candidates[:2]
    broken = Candidate.of(fit.variant, {"BLOCK": 1000, "num_warps": 4})  # tl.arange wants powers of two
    wanted = [(problem, candidate) for problem in chosen for candidate in (fit, other, broken)]
    compiled = noted()
    with Ahead(load, gpu, wanted, jobs=1) as ahead:
        waited = ahead.wait_for_any(chosen[0], [fit, other])
        for problem, candidate in wanted:
            ahead.wait_for_any(problem, [candidate])
        results = [ahead.result(problem, candidate) for problem, candidate in wanted]
        ahead.prepare(chosen[0], fit)
        ahead.prepare(chosen[1], fit)  # of the same dtype: the same certificate
        prepared = ahead.wait_for_prepared(chosen[0], fit)
        unknown = ahead.result(chosen[0], chosen[0].candidates[-1])
        print(json.dumps({
            "tasks": len(ahead.tasks),
            "statuses": [result.status for result in results],
            "reason": results[2].reason,
            "waited": waited > 0,
            "unknown": unknown,
            "prepared": prepared > 0,
            "cases": len([task for task in compiled if task.case not in {problem.case for problem in chosen}]),
            "ready": ahead.ready(chosen[1], fit),
        }))  # fmt: skip
    end = time.monotonic() + 240
    while "atlas-compiler" in descendants(os.getpid()):
        assert time.monotonic() < end, "a compiler outlives what it compiled for"
        time.sleep(0.02)


if __name__ == "__main__":
    main()
