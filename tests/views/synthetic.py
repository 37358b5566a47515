"""Result documents of simulated GPUs, for tests alone: every field plausible, no figure measured by anybody.

A document goes through ``documents.write``, so what the views are tested on is what the stages may write.  All draws
come from seeds made of names: the same call gives the same documents.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atlas import catalog
from atlas.identity.needs import needed
from atlas.results import documents

DATE = "2026-11-20T10:00:00+00:00"


@dataclass(frozen=True)
class Simulated:
    """One GPU: arch, bandwidth in GB/s, matmul rate in TFLOP/s, what tl.dot becomes there."""

    arch: int
    bandwidth: float
    rate: float
    device_name: str
    dot: str
    power_cap_w: float
    bf16: bool = True


GPUS = {
    "h200": Simulated(90, 4300, 780, "NVIDIA H200", "wgmma", 700),
    "h100": Simulated(90, 3000, 720, "NVIDIA H100 80GB HBM3", "wgmma", 700),
    "a100": Simulated(80, 1800, 270, "NVIDIA A100-SXM4-80GB", "mma", 400),
    "l40s": Simulated(89, 780, 180, "NVIDIA L40S", "mma", 350),
    "t4": Simulated(75, 270, 4.5, "Tesla T4", "fma", 70, bf16=False),
    "l4": Simulated(89, 260, 110, "NVIDIA L4", "mma", 72),
    "b200": Simulated(100, 7000, 1700, "NVIDIA B200", "tcgen05", 1000),
    "a6000": Simulated(86, 690, 140, "NVIDIA RTX A6000", "mma", 300),
}
MANY = ("h200", "h100", "a100", "l40s", "t4", "l4", "b200", "a6000")
"""Eight of them."""


@dataclass(frozen=True)
class Kernel:
    """One simulated kernel: its cases, and how close to the roof each provider comes."""

    name: str
    sizes: Sequence[Mapping[str, Any]]
    compute: bool = False
    backward: bool = False
    dtypes: Sequence[str] = ("bf16", "fp32")
    variants: Mapping[str, float] = field(default_factory=lambda: {"tiled": 0.92, "naive": 0.7})
    peers: Mapping[str, float] = field(default_factory=lambda: {"torch": 0.55, "torch.compile": 0.85, "liger": 0.8})

    def cost(self, sizes: Mapping[str, Any], dtype: str) -> tuple[float, float]:
        """Bytes and flops of a case."""
        width = 4 if dtype == "fp32" else 2
        numbers = [v for v in sizes.values() if isinstance(v, int) and not isinstance(v, bool)]
        if "heads" in sizes:
            rows = sizes["seq"] * sizes["heads"]
            return 4.0 * width * rows * 64, 4.0 * rows * sizes["seq"] * 64 * (0.5 if sizes["causal"] else 1)
        if self.compute:
            m, n, k = (numbers * 3)[:3]
            return float(width * (m * k + k * n + m * n)), 2.0 * m * n * k
        elements = 1
        for number in numbers:
            elements *= number
        return 2.0 * width * elements, 5.0 * elements


KERNELS = (
    Kernel("vector_add", [{"n": 2**i} for i in (12, 16, 20, 24, 26, 28)], dtypes=("fp32", "fp16", "bf16"),
           variants={"blocks": 0.97}, peers={"torch": 0.97, "torch.compile": 0.95}),
    Kernel("softmax", [{"m": m, "n": n} for m, n in ((4096, 1024), (8192, 8192), (4096, 32768), (1024, 262144))],
           backward=True, variants={"online_split_rows": 0.9, "single_pass": 0.95, "naive": 0.5}),
    Kernel("matmul", [{"m": s, "n": s, "k": s} for s in (512, 1024, 2048, 4096, 8192)], compute=True,
           dtypes=("bf16", "fp16"), variants={"pointers": 0.94, "persistent": 0.98, "descriptors_persistent": 1.0},
           peers={"torch": 1.0, "torch.compile": 0.99}),
    Kernel("scaled_dot_product_attention",
           [{"seq": s, "heads": 16, "causal": c} for c in (False, True) for s in (1024, 4096, 16384)], compute=True,
           backward=True, dtypes=("bf16",), variants={"flash_diagonal_split": 0.72, "flash_warp_specialized": 0.78},
           peers={"torch": 0.3, "flash_attention_2 through torch": 0.5, "cuDNN through torch": 0.8}),
)  # fmt: skip
"""Four kernels that stress the views: one size and several, flags, long names, one direction and two."""


def use_catalog(folder: Path, kernels: Sequence[Kernel]) -> Path:
    """A folder of kernel files with these names, to be set as ``catalog.KERNELS``."""
    folder.mkdir(parents=True, exist_ok=True)
    for kernel in kernels:
        (folder / f"{kernel.name}.py").write_text(f'"""Simulated {kernel.name}."""\n')
    return folder


def write_everything(
    results: Path,
    kernels: Sequence[Kernel] = KERNELS,
    measured: Sequence[str] = (),
    recorded: Sequence[str] = (),
    built: Sequence[str] = (),
    functional: bool = True,
) -> None:
    """All documents of a run: ``measured`` and ``recorded`` GPUs with every stage, ``built`` ones compiled only."""
    for folder, names in (("measured", measured), ("recorded", recorded)):
        for gpu in names:
            write(results, folder, survey(gpu))
            for kernel in kernels:
                for document in (build(kernel, gpu), *on_gpu(kernel, gpu)):
                    write(results, folder, document)
    for gpu in built:
        for kernel in kernels:
            write(results, "measured", build(kernel, gpu, sample=True))
    if functional:
        for kernel in kernels:
            for document in interpreted(kernel):
                write(results, "measured", document)


def write(results: Path, folder: str, document: dict[str, Any]) -> Path:
    """Put a document where its stage would, under ``measured`` or ``recorded``."""
    place = results / folder / document["gpu"] / (document["kernel"] or "")
    documents.write(place / f"{document['stage']}.json", document)
    return place / f"{document['stage']}.json"


def envelope(stage: str, kernel: str | None, gpu: str, kind: str, seconds: float, **changes: Any) -> dict[str, Any]:
    """What every document says; ``changes`` replace any of it."""
    simulated = GPUS.get(gpu)
    device = {}
    if kind == "measured" and simulated:
        device = {"device_name": simulated.device_name, "driver": "580.95.05", "power_cap_w": simulated.power_cap_w}
    known = kernel in catalog.names()
    digest, identities = catalog.digest(kernel) if known else "0" * 64, catalog.identities(kernel) if known else {}
    software = {"torch": "2.13.0+cu130", "triton": "3.7.1", "python": "3.12.3", "cuda": "13.0",
                "commit": "0123456789ab", "date": DATE}  # fmt: skip
    return {
        "stage": stage, "schema_version": documents.VERSIONS[stage], "kernel": kernel, "gpu": gpu, "kind": kind,
        "status": "ok", "reason": "", "kernel_digest": digest if kernel else None, "software": software,
        "device": device, "seconds": seconds, **({"identities": needed(stage, identities)} if kernel else {}),
    } | changes  # fmt: skip


def survey(gpu: str) -> dict[str, Any]:
    """Roofs of a simulated GPU."""
    simulated = GPUS[gpu]
    roofs = [
        ("copy", simulated.bandwidth, "GB/s"), ("read", simulated.bandwidth * 1.03, "GB/s"),
        ("write", simulated.bandwidth * 1.06, "GB/s"), ("matmul_bf16", simulated.rate, "TFLOP/s"),
        ("matmul_fp16", simulated.rate, "TFLOP/s"), ("matmul_fp32", simulated.rate / 8, "TFLOP/s"),
        ("launch_latency", 4.0, "us"),
    ]  # fmt: skip
    rows = [{"name": n, "value": round(v, 1), "unit": u, "how": f"simulated {n}", "status": "ok"} for n, v, u in roofs]
    if not simulated.bf16:
        rows[3] |= {"value": None, "status": "unsupported", "reason": "no bf16 on this GPU"}
    return envelope("survey", None, gpu, "measured", 31.0) | {"protocol": "timing/1", "roofs": rows, "properties": {}}


def proof(gpu: str, name: str = "repeatability", worst: float = 0.015) -> dict[str, Any]:
    """Two claims, the second of which holds up to 0.02."""
    claims = [
        {"text": "median disagreement", "found": 0.0044, "limit": 0.01, "holds": True},
        {"text": "95th percentile of disagreement", "found": worst, "limit": 0.02, "holds": worst <= 0.02},
    ]
    changes = {} if worst <= 0.02 else {"status": "failed", "reason": "the runs disagree"}
    body = {"proof": name, "claims": claims, "rows": [{"kernel": "softmax", "cases": 12}], "notes": []}
    return envelope("prove", None, gpu, "measured", 300.0, **changes) | body


def build(kernel: Kernel, gpu: str, sample: bool = False) -> dict[str, Any]:
    """A build of 4 or 12 configs of every variant, dtype and direction."""
    simulated, configs = GPUS[gpu], []
    for variant in kernel.variants:
        for direction in directions(kernel):
            for dtype in kernel.dtypes:
                for position, config in enumerate(space()[: 4 if sample else 12]):
                    draw = random.Random(f"{kernel.name}{gpu}{variant}{dtype}{position}")
                    registers = min(255, int(draw.gauss(90 if kernel.compute else 40, 40)) // 8 * 8 + 24)
                    registers = max(16, registers)
                    shared = config["BLOCK"] * 64 * config["num_stages"] if kernel.compute else 1024
                    spills = 128 * draw.randrange(1, 5) if registers == 255 else 0
                    pruned = shared > 227 * 1024
                    configs.append({
                        "variant": variant, "direction": direction, "dtype": dtype, "sizes": dict(kernel.sizes[0]),
                        "config": config, "default": position == 0, "status": "pruned" if pruned else "ok",
                        "reason": f"needs {shared} bytes of shared memory" if pruned else "",
                        "compile_seconds": round(draw.uniform(0.1, 0.4), 3), "registers": registers,
                        "spill_bytes": spills, "shared_bytes": shared, "threads": 32 * config["num_warps"],
                        "occupancy": 0.5, "widest_access_bits": 128,
                        "matrix_instruction": simulated.dot if kernel.compute else "none",
                        "async_copies": "tma" if simulated.dot == "wgmma" else "none",
                        "warp_specialized": simulated.dot == "wgmma" and kernel.compute,
                    })  # fmt: skip
    scope = {"mode": "sample" if sample else "all", "total": 12 * len(configs), "compiled": len(configs)}
    document = envelope("build", kernel.name, gpu, "compiled", 12.5)
    return document | {"target": {"backend": "cuda", "arch": simulated.arch}, "scope": scope, "configs": configs}


def space() -> list[dict[str, int]]:
    """Twelve configs."""
    return [{"BLOCK": b, "num_warps": w, "num_stages": s} for b in (64, 128, 256) for w in (4, 8) for s in (2, 4)]


def directions(kernel: Kernel) -> tuple[str, ...]:
    """The passes of a simulated kernel."""
    return ("forward", "backward") if kernel.backward else ("forward",)


def on_gpu(kernel: Kernel, gpu: str) -> Iterator[dict[str, Any]]:
    """What validate, autotune and benchmark would write of a kernel on a GPU."""
    yield validate(kernel, gpu)
    yield autotune(kernel, gpu)
    yield benchmark(kernel, gpu)
    if gpu == "h200":
        yield profile(kernel, gpu)
        yield energy(kernel, gpu)
        yield beyond(kernel, gpu)


def beyond(kernel: Kernel, gpu: str) -> dict[str, Any]:
    """Two calls at a case that nobody tuned: one twice as fast as torch, one that failed."""
    call = {"mode": "forward", "dtype": kernel.dtypes[0], "sizes": {"m": 3, "n": 5}, "status": "ok", "reason": ""}
    failed = call | {"mode": "step", "status": "failed", "reason": "out of luck"}
    torch = call | {"provider": "torch", "median_us": 20.0, "queued": True}
    rows = [call | {"provider": "public", "median_us": 10.0, "queued": True, "call_us": 31.0}, torch,
            failed | {"provider": "public"}, torch | {"mode": "step"}]  # fmt: skip
    return envelope("beyond", kernel.name, gpu, "measured", 5.0) | {"protocol": "timing/2", "seed": 7, "rows": rows}


def profile(kernel: Kernel, gpu: str) -> dict[str, Any]:
    """Counters of each variant's one launch: twice the traffic it needs, half of what the memory gives."""
    launch = {
        "duration_us": 123.0, "dram_read_bytes": 2.0 * 2**30, "dram_write_bytes": 0.0, "dram_percent": 50.0,
        "l2_hit_percent": 33.0, "tensor_percent": None, "issue_percent": 12.0, "occupancy_percent": 75.0,
        "shared_conflicts": 1234.0, "registers": 168.0, "stalls": {"long_scoreboard": 7.5, "barrier": 0.5},
    }  # fmt: skip
    rows = [
        {
            "provider": variant, "provider_kind": "variant", "direction": "forward", "dtype": kernel.dtypes[0],
            "sizes": dict(kernel.sizes[0]), "config": space()[0], "bytes": float(2**30),
            "launches": [
                launch
                | {"kernel": f"{variant}_kernel", "duration_us": 123.0 - place, "l2_hit_percent": 33.0 + 12 * place}
            ],
        }
        for place, variant in enumerate(kernel.variants)
    ]  # fmt: skip
    return envelope("profile", kernel.name, gpu, "measured", 9.0) | {"rows": rows}


def energy(kernel: Kernel, gpu: str) -> dict[str, Any]:
    """The first variant at 600 W, twice as long as the peer, which failed in backward."""
    sizes, dtype = dict(kernel.sizes[-1]), "bf16" if "bf16" in kernel.dtypes else kernel.dtypes[0]
    traffic, flops = kernel.cost(sizes, dtype)
    of_case = {"direction": "forward", "dtype": dtype, "sizes": sizes, "bytes": traffic, "flops": flops}
    measured = {"joules": 0.6, "joules_least": 0.59, "joules_most": 0.62, "loop_us": 1000.0, "watts": 600.0,
                "calls": 2900, "repeats": 3, "captured": True, "sm_clock_mhz": 1900.0, "throttled_by": []}  # fmt: skip
    ours = {"provider": next(iter(kernel.variants)), "provider_kind": "variant", "config": space()[0]}
    peer = {"provider": "torch", "provider_kind": "peer", "config": None}
    rows = [of_case | ours | measured | {"status": "ok", "reason": ""},
            of_case | peer | {"status": "failed", "reason": "out of luck"}]  # fmt: skip
    of_board = {"protocol": "energy/1", "how": "energy counter", "rest_w": 118.0}
    return envelope("energy", kernel.name, gpu, "measured", 14.0) | of_board | {"rows": rows}


def interpreted(kernel: Kernel) -> Iterator[dict[str, Any]]:
    """What they write where the interpreter runs them: the smallest case alone, in milliseconds."""
    small = Kernel(**(vars(kernel) | {"sizes": kernel.sizes[:1]}))
    yield validate(small, "cpu")
    yield autotune(small, "cpu")
    yield benchmark(small, "cpu")


def _kind(gpu: str) -> str:
    return "functional" if gpu == "cpu" else "measured"


def validate(kernel: Kernel, gpu: str, wrong: str = "") -> dict[str, Any]:
    """Checks of every variant; ``wrong`` names a variant that fails one, with this reason."""
    checks = []
    for variant in kernel.variants:
        for direction in directions(kernel):
            for dtype in kernel.dtypes:
                for check in ("values", "written_once_and_inside", "nan_inf", "repeatable"):
                    draw = random.Random(f"{kernel.name}{gpu}{variant}{dtype}{check}")
                    bad = variant == wrong and check == "values" and direction == "forward"
                    checks.append({
                        "check": check, "variant": variant, "direction": direction, "dtype": dtype,
                        "sizes": dict(kernel.sizes[0]), "status": "fail" if bad else "pass",
                        "reason": "out[0, 17]: expected 0.25, got 0.5" if bad else "", "seed": 3,
                        "tolerance_used": 41.0 if bad else round(draw.uniform(0.05, 0.7), 3),
                        "error_over_torch": round(draw.uniform(0.5, 1.4), 3), "max_abs_error": 1e-3,
                        "replay": f"python -m atlas validate {kernel.name} --gpu {gpu} --seeds 5",
                    })  # fmt: skip
    changes = {"status": "wrong", "reason": f"{wrong}: values forward: 1 check fails"} if wrong else {}
    document = envelope("validate", kernel.name, gpu, _kind(gpu), 22.0, **changes)
    return document | {"protocol": "validation/1", "seeds": [1, 2, 3, 4, 5], "checks": checks}


def _microseconds(
    kernel: Kernel, gpu: str, sizes: Mapping[str, Any], dtype: str, efficiency: float, seed: str
) -> float:
    simulated = GPUS.get(gpu, Simulated(0, 0.05, 1e-4, "", "none", 0))
    bytes_, flops = kernel.cost(sizes, dtype)
    rate = simulated.rate / (8 if dtype == "fp32" else 1)
    ideal = max(bytes_ / simulated.bandwidth / 1e3, (flops / rate / 1e6) if kernel.compute else 0)
    draw = random.Random(f"{gpu}{kernel.name}{dtype}{sorted(sizes.items())}{seed}")
    return 3.0 + ideal / efficiency * draw.uniform(0.93, 1.12)


def _supported(kernel: Kernel, gpu: str) -> list[str]:
    return [d for d in kernel.dtypes if d != "bf16" or gpu not in GPUS or GPUS[gpu].bf16]


def problems(kernel: Kernel, gpu: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every direction, dtype and case this GPU runs."""
    for direction in directions(kernel):
        for dtype in _supported(kernel, gpu):
            for sizes in kernel.sizes:
                yield direction, dtype, dict(sizes)


def autotune(kernel: Kernel, gpu: str) -> dict[str, Any]:
    """A search of twelve configs per variant and case, one of which ran out of shared memory."""
    best, trials, clock = [], [], 1.0
    for direction, dtype, sizes in problems(kernel, gpu):
        timed = []
        for variant, efficiency in kernel.variants.items():
            for config in space():
                clock += 0.31
                handicap = random.Random(f"{config}{kernel.name}{GPUS[gpu].arch if gpu in GPUS else 0}").uniform(0.5, 1)
                us = _microseconds(kernel, gpu, sizes, dtype, efficiency * handicap, f"{direction}{variant}{config}")
                fits = not (kernel.compute and config["BLOCK"] == 256 and config["num_stages"] == 4)
                trial = {"direction": direction, "dtype": dtype, "sizes": sizes, "variant": variant, "config": config,
                         "status": "ok" if fits else "out_of_resources",
                         "reason": "" if fits else "shared memory: needs 262144 bytes, 232448 there are",
                         "median_us": us if fits else None, "rung": 0, "at_seconds": round(clock, 2)}  # fmt: skip
                trials.append(trial)
                timed += [trial] if fits else []
        timed.sort(key=lambda trial: trial["median_us"])
        first, second = timed[:2]
        best.append({key: first[key] for key in ("direction", "dtype", "sizes", "variant", "config", "median_us")} | {
            "runner_up": {key: second[key] for key in ("variant", "config", "median_us")}, "trials": len(timed),
            "space": 12 * len(kernel.variants), "default_us": first["median_us"] * 1.2, "regret": None,
        })  # fmt: skip
    counts = {status: sum(t["status"] == status for t in trials) for status in {t["status"] for t in trials}}
    return envelope("autotune", kernel.name, gpu, _kind(gpu), clock + 17) | {
        "protocol": "timing/1", "strategy": "halving", "budget_seconds": 120,
        "seconds_by_phase": {"prepare": 2.0, "compile": 14.0, "time": clock, "check": 1.0},
        "trials_by_status": counts, "best": best, "trials": trials,
    }  # fmt: skip


def benchmark(kernel: Kernel, gpu: str) -> dict[str, Any]:
    """Rows of every variant, its default and every peer; torch.compile fails where the GPU is the T4."""
    rows = []
    for direction, dtype, sizes in problems(kernel, gpu):
        group = [_timed(kernel, gpu, direction, dtype, sizes, name, kind, efficiency)
                 for kind, named in (("variant", kernel.variants), ("default", kernel.variants), ("peer", kernel.peers))
                 for name, efficiency in named.items()]  # fmt: skip
        compare(group)
        rows += group
    document = envelope("benchmark", kernel.name, gpu, _kind(gpu), 48.0)
    slowest_first = sorted(kernel.variants, key=kernel.variants.get)
    directions = dict.fromkeys(row["direction"] for row in rows)
    steps = [{"direction": direction, "variant": name, "follows": before, "summary": f"what {name} changes"}
             for direction in directions
             for before, name in zip(["", *slowest_first], slowest_first, strict=False)]  # fmt: skip
    return document | {"protocol": "timing/1", "steps": steps, "rows": rows}


def _timed(
    kernel: Kernel, gpu: str, direction: str, dtype: str, sizes: dict, name: str, kind: str, efficiency: float
) -> dict[str, Any]:
    bytes_, flops = kernel.cost(sizes, dtype)
    row = {"provider": name, "provider_kind": kind, "direction": direction, "dtype": dtype, "sizes": sizes,
           "config": None if kind == "peer" else space()[3 if kind == "variant" else 0], "status": "ok", "reason": "",
           "bytes": bytes_, "flops": flops}  # fmt: skip
    if name == "torch.compile" and gpu == "t4":
        return row | {"status": "failed", "reason": "RuntimeError: Triton of this torch refuses <sm_75> & older"}
    efficiency *= 0.8 if kind == "default" else 1
    us = _microseconds(kernel, gpu, sizes, dtype, efficiency, f"{direction}{name}{kind}")
    samples = [us * factor for factor in (0.99, 0.995, 1, 1, 1, 1, 1.005, 1.01, 1.02, 0.998)]
    row |= {"median_us": us, "q1_us": us * 0.997, "q3_us": us * 1.004, "samples_us": samples,
            "gb_per_s": bytes_ / us / 1e3, "tflop_per_s": flops / us / 1e6}  # fmt: skip
    if gpu in GPUS:
        simulated = GPUS[gpu]
        top = simulated.rate / (8 if dtype == "fp32" else 1) if kernel.compute else simulated.bandwidth
        row |= {"roof": f"matmul_{dtype}" if kernel.compute else "copy",
                "roof_fraction": (row["tflop_per_s"] if kernel.compute else row["gb_per_s"]) / top}  # fmt: skip
    return row


def compare(group: list[dict[str, Any]]) -> None:
    """Fill in ``speedup`` and ``verdict`` of one case's rows, as the benchmark does."""
    peers = [row["median_us"] for row in group if row["provider_kind"] == "peer" and row.get("median_us")]
    for row in group:
        if peers and row.get("median_us"):
            row["speedup"] = min(peers) / row["median_us"]
            row["verdict"] = "faster" if row["speedup"] > 1.005 else "slower" if row["speedup"] < 0.995 else "same"
