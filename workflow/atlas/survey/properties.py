"""What the driver says of a device."""

from __future__ import annotations

from typing import Any

import torch


def properties(device: torch.device) -> dict[str, Any]:
    """Name, SMs, memory, cache and shared memory in bytes, compute capability."""
    found = torch.cuda.get_device_properties(device)
    return {
        "name": found.name,
        "compute_capability": f"{found.major}.{found.minor}",
        "sms": found.multi_processor_count,
        "memory_bytes": found.total_memory,
        "l2_bytes": found.L2_cache_size,
        "shared_bytes": getattr(found, "shared_memory_per_block_optin", None),
        "threads_per_sm": found.max_threads_per_multi_processor,
        "registers_per_sm": getattr(found, "regs_per_multiprocessor", None),
        "warp_size": found.warp_size,
    }
