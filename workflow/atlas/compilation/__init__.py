"""Compiling kernels ahead of time: for a GPU that may be elsewhere, with nothing launched."""
