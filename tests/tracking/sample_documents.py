"""Plausible documents of kernels and GPUs that need not exist, written where the stages would write them."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

from atlas.results import documents

BANDWIDTH = {"h200": 4271.0, "a100": 1780.0, "t4": 263.0, "h100": 2950.0}
MATMUL = {"h200": 783.0, "a100": 268.0, "t4": 24.0, "h100": 690.0}
SIZES = ({"m": 4096, "n": 1024}, {"m": 8192, "n": 8192}, {"m": 4096, "n": 32768})
PEERS = {"torch": 0.55, "torch.compile": 0.82, "liger": 0.78}
DATE = "2026-11-21T10:{:02d}:00+00:00"
DIGEST = hashlib.sha256(b"a kernel's file").hexdigest()
IDENTITIES = {"*": "0123456789abcdef"}


def envelope(stage: str, kernel: str | None, gpu: str, kind: str = "measured", **changes: Any) -> dict[str, Any]:
    """The part every document has; ``changes`` replace its keys."""
    minute = 5 * list(documents.VERSIONS).index(stage)
    found = {
        "stage": stage,
        "schema_version": documents.VERSIONS[stage],
        "kernel": kernel,
        "gpu": gpu,
        "kind": kind,
        "status": "ok",
        "reason": "",
        "kernel_digest": DIGEST if kernel else None,
        **({"identities": IDENTITIES} if kernel else {}),
        "software": {
            "torch": "2.11.0",
            "triton": "3.6.0",
            "python": "3.12.3",
            "cuda": "13.0",
            "hip": None,
            "commit": "0123456789ab",
            "date": DATE.format(minute),
        },
        "device": {"device_name": gpu.upper(), "driver": "580.95", "power_cap_w": 700.0} if kind == "measured" else {},
        "seconds": 42.5,
    }
    return found | changes


def _unit(*parts: Any) -> float:
    """A number in [0, 1) that depends on nothing but the parts."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:8], 16) / 2**32


def configs() -> list[dict[str, Any]]:
    """A space of 24 configs."""
    return [
        {"BLOCK": block, "num_warps": warps, "num_stages": stages}
        for block in (512, 1024, 2048, 4096)
        for warps in (2, 4, 8)
        for stages in (1, 3)
    ]


def _median_us(kernel: str, gpu: str, sizes: dict[str, int], part: float) -> float:
    """The time at which a kernel reaches this part of its roof."""
    if kernel == "matmul":
        return 2 * sizes["m"] * sizes["n"] * 4096 / (part * MATMUL.get(gpu, 1.0)) / 1e6
    return 2 * 2 * sizes["m"] * sizes["n"] / (part * BANDWIDTH.get(gpu, 1.0)) / 1e3 + 2.0


def _work(kernel: str, sizes: dict[str, int]) -> dict[str, float]:
    flops = 2 * sizes["m"] * sizes["n"] * (4096 if kernel == "matmul" else 2)
    return {"bytes": float(4 * sizes["m"] * sizes["n"]), "flops": float(flops)}


def survey(gpu: str, **changes: Any) -> dict[str, Any]:
    """Roofs of bandwidth and matmul."""
    roofs = [
        {"name": "copy", "value": BANDWIDTH[gpu], "unit": "GB/s", "how": "copy of 4 GiB"},
        {"name": "matmul_bf16", "value": MATMUL[gpu], "unit": "TFLOP/s", "how": "torch.matmul, 8192 cubed"},
        {"name": "launch_latency", "value": 4.0, "unit": "us", "how": "add of one element"},
    ]
    body = {"protocol": "timing/1", "properties": {"sms": 132, "l2_bytes": 62914560}, "roofs": roofs}
    return envelope("survey", None, gpu, **changes) | body


def build(kernel: str, gpu: str, **changes: Any) -> dict[str, Any]:
    """A compiled space of 24 configs."""
    rows = [
        {
            "variant": "blocks",
            "direction": "forward",
            "dtype": "bf16",
            "sizes": SIZES[-1],
            "config": config,
            "default": index == 0,
            "status": "ok",
            "reason": "",
            "compile_seconds": 0.2,
            "registers": 32 + config["BLOCK"] // 64,
            "spill_bytes": 0,
            "shared_bytes": 1024,
            "threads": 32 * config["num_warps"],
            "occupancy": 0.75,
            "widest_access_bits": 128,
            "matrix_instruction": "wgmma" if kernel == "matmul" else "none",
        }
        for index, config in enumerate(configs())
    ]
    body = {
        "target": {"backend": "cuda", "arch": 90},
        "scope": {"mode": "all", "total": 24, "compiled": 24},
        "configs": rows,
    }
    return envelope("build", kernel, gpu, "compiled", **changes) | body


def validate(kernel: str, gpu: str, kind: str = "measured", **changes: Any) -> dict[str, Any]:
    """Three checks that pass, or where the status is wrong one that does not."""
    failed = changes.get("status") == "wrong"
    checks = [
        {
            "check": "values",
            "variant": "blocks",
            "direction": "forward",
            "dtype": dtype,
            "sizes": SIZES[0],
            "status": "fail" if failed and dtype == "bf16" else "pass",
            "reason": "",
            "tolerance_used": 0.3,
            "error_over_torch": 1.0,
        }
        for dtype in ("fp32", "fp16", "bf16")
    ]
    body = {"protocol": "validation/1", "seeds": [0, 1, 2, 3, 4], "checks": checks}
    return envelope("validate", kernel, gpu, kind, **changes) | body


def autotune(kernel: str, gpu: str, kind: str = "measured", **changes: Any) -> dict[str, Any]:
    """The whole space timed on each size, in bf16; one trial in 24 does not compile."""
    trials, best = [], []
    for sizes in SIZES:
        timed = []
        for index, config in enumerate(configs()):
            part = 0.5 + 0.42 * _unit(kernel, gpu, sizes["n"], index)
            median = _median_us(kernel, gpu, sizes, part)
            trial = {"direction": "forward", "dtype": "bf16", "sizes": sizes, "variant": "blocks", "config": config}
            at = {"at_seconds": 0.5 * len(trials), "samples": 20, "rung": 1}
            if index == 7:
                trials.append(
                    trial | {"status": "compile_error", "reason": "ptxas: out of registers", "median_us": None}
                )
                continue
            timed.append(
                trial
                | {"status": "ok", "reason": "", "median_us": median, "q1_us": 0.99 * median, "q3_us": 1.01 * median}
                | at
            )
        trials += timed
        first, second, *_ = sorted(timed, key=lambda trial: trial["median_us"])
        best.append(
            {
                **{key: first[key] for key in ("direction", "dtype", "sizes", "variant", "config")},
                **{key: first[key] for key in ("median_us", "q1_us", "q3_us")},
                "runner_up": {key: second[key] for key in ("variant", "config", "median_us")},
                "default_us": timed[0]["median_us"],
                "trials": 24,
                "space": 24,
                "regret": 0.0,
            }
        )
    body = {
        "protocol": "timing/1",
        "strategy": "exhaustive",
        "budget_seconds": 120.0,
        "seconds_by_phase": {"compile": 5.0, "time": 31.0},
        "trials_by_status": {"ok": 69, "compile_error": 3},
        "best": best,
        "trials": trials,
    }
    return envelope("autotune", kernel, gpu, kind, **changes) | body


def benchmark(kernel: str, gpu: str, kind: str = "measured", **changes: Any) -> dict[str, Any]:
    """The tuned variant, its default and three peers on each size, in bf16 and fp32, with 40 raw samples each."""
    rows: list[dict[str, Any]] = []
    bests = {entry["sizes"]["n"]: entry for entry in autotune(kernel, gpu)["best"]}
    for dtype, sizes in ((dtype, sizes) for dtype in ("fp32", "bf16") for sizes in SIZES):
        group = []
        tuned = bests[sizes["n"]]
        slower = 2.0 if dtype == "fp32" else 1.0
        providers = [("blocks", "variant", tuned["median_us"], tuned["config"])]
        providers += [("blocks", "default", tuned["default_us"], configs()[0])]
        peers = {"cublas": 0.97} if kernel == "matmul" else PEERS
        providers += [(name, "peer", _median_us(kernel, gpu, sizes, part), None) for name, part in peers.items()]
        work = _work(kernel, sizes)
        for name, provider_kind, median, config in providers:
            median *= slower
            rates = {"gb_per_s": slower * work["bytes"] / median / 1e3, "tflop_per_s": work["flops"] / median / 1e6}
            matrix = kernel == "matmul"
            fraction = rates["tflop_per_s"] / MATMUL[gpu] if matrix else rates["gb_per_s"] / BANDWIDTH[gpu]
            group.append(
                {"provider": name, "provider_kind": provider_kind, "direction": "forward", "dtype": dtype}
                | {"sizes": sizes, "config": config, "status": "ok", "reason": "", "median_us": median}
                | {"q1_us": 0.99 * median, "q3_us": 1.01 * median}
                | {"samples_us": [median * (1 + 0.01 * math.sin(i)) for i in range(40)]}
                | {"bytes": slower * work["bytes"], "flops": work["flops"], **rates}
                | {"roof": "matmul_bf16" if matrix else "copy", "roof_fraction": fraction, "throttled": False}
            )
        fastest = min(row["median_us"] for row in group if row["provider_kind"] == "peer")
        rows += [row | {"speedup": fastest / row["median_us"]} for row in group]
    return envelope("benchmark", kernel, gpu, kind, **changes) | {"protocol": "timing/1", "rows": rows}


def put(results: Path, document: dict[str, Any], folder: str = "measured") -> Path:
    """Write a document where its stage would; returns the file."""
    path = results / folder / document["gpu"]
    if document["kernel"]:
        path /= document["kernel"]
    path /= f"{document['stage']}.json"
    documents.write(path, document)
    return path


def put_gpu(results: Path, gpu: str, kernels: tuple[str, ...], folder: str = "measured") -> None:
    """All documents of a GPU: everything for one that ran, a build only for one in ``absent``."""
    put(results, survey(gpu), folder)
    for kernel in kernels:
        for stage in (build, validate, autotune, benchmark):
            put(results, stage(kernel, gpu), folder)


def put_interpreted(results: Path, kernels: tuple[str, ...]) -> None:
    """What the CPU interpreter leaves: no survey and no build, times that mean nothing."""
    for kernel in kernels:
        for stage in (validate, autotune):
            put(results, stage(kernel, "cpu", "functional"))
        document = benchmark(kernel, "h200", "functional") | {"gpu": "cpu"}
        put(results, document)


def artifact(run: Any, *parts: str) -> Path:
    """A run's artifact in the file system."""
    return Path(run.info.artifact_uri.removeprefix("file://"), *parts)
