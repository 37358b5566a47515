"""Kernel Atlas: build, validate, tune, benchmark and compare Triton kernels across GPUs.

Each stage is a function and a command, ``python -m atlas STAGE KERNEL --gpu NAME``, that reads a kernel's
declaration and earlier documents and writes one document under ``results/``.  Snakemake decides which stages run; no
stage knows it.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout: the folder that holds ``kernels/``, ``config/`` and ``workflow/``."""
