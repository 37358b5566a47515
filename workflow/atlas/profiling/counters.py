"""Which counters are asked for, what they are called here, and what they say of one launch.

Names are those of Nsight Compute's metrics (docs.nvidia.com/nsight-compute, "Metrics Reference"); a GPU that lacks one
goes without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .ncu import DURATION, Launch

COUNTERS = {
    "duration_us": DURATION,
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_hit_percent": "lts__t_sector_hit_rate.pct",
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "issue_percent": "sm__inst_issued.avg.pct_of_peak_sustained_elapsed",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "shared_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
}
"""Name here to metric.  Percentages are of the peak over the launch, but occupancy: of the warps an SM holds."""

_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = {
    "long_scoreboard": "global or local memory",
    "short_scoreboard": "shared memory or special functions",
    "barrier": "a barrier of the block",
    "membar": "a memory fence",
    "wait": "a fixed latency",
    "math_pipe_throttle": "a busy arithmetic pipe",
    "mio_throttle": "the queue of shared memory and special functions",
    "lg_throttle": "the queue of global memory",
    "tex_throttle": "the queue of L1",
    "drain": "stores to drain",
    "gmma": "a matrix product of the warp group",
    "no_instruction": "instructions",
    "dispatch_stall": "dispatch",
    "imc_miss": "constants",
    "branch_resolving": "a branch",
    "sleeping": "a sleep, as of a warp that polls",
}
"""What a warp may wait for, by the part of ncu's name that differs."""


def metrics() -> list[str]:
    """All that ncu is asked for."""
    return [*COUNTERS.values(), *(_STALL.format(reason) for reason in STALLS)]


def facts(launch: Launch) -> dict[str, Any]:
    """``kernel``, every counter of :data:`COUNTERS` (None where ncu gave none), and ``stalls``.

    ``stalls``: of each reason, in the order of their weight, the warps that waited for it on average whenever a
    scheduler issued an instruction.
    """
    values: Mapping[str, float] = launch.values
    stalls = {reason: values.get(_STALL.format(reason)) for reason in STALLS}
    weighed = sorted(((n, reason) for reason, n in stalls.items() if n), reverse=True)
    found = {name: values.get(metric) for name, metric in COUNTERS.items()}
    return {"kernel": launch.kernel, **found, "stalls": {reason: round(n, 4) for n, reason in weighed}}
