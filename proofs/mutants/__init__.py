"""Faults planted in kernels: whether validation catches each, and flags no true kernel."""
