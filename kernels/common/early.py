"""Launches that begin while the kernel before them ends (PDL, from compute capability 9.0 on)."""

from atlas.declaration import gpu_of
from atlas.operators import launch


def launch_early(kernel, grid, device, *args, **meta):
    """Launch ``kernel`` beside what writes its input, where ``device`` can: with EARLY it waits for that by itself."""
    gpu = gpu_of(device)
    early = gpu.backend == "cuda" and int(gpu.arch) >= 90
    launch(kernel, grid, *args, **meta, EARLY=early, **({"launch_pdl": True} if early else {}))
