"""Hardware counters by NVIDIA's Nsight Compute (ncu), launch by launch.

A process of its own (:mod:`.launches`) launches what a plan names; ncu (:mod:`.ncu`) watches it.
"""
