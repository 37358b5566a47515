"""Configs of the tiled kernels: those of attention whose heads are all as wide as the wider ones."""

from atlas.declaration import GPU, Case, Config

from kernels.attention import spaces

from .cases import of_one_size, of_size


def fits_forward(config: Config, problem: Case, gpu: GPU, pointers: bool = False) -> str:
    return spaces.fits_forward(config, of_one_size(problem), gpu, pointers)


def forward_default(problem: Case, gpu: GPU, pointers: bool = False) -> dict[str, int]:
    return spaces.forward_default(of_one_size(problem), gpu, pointers)


def fits_backward(config: Config, problem: Case, gpu: GPU, pointers: bool = False) -> str:
    return spaces.fits_backward(config, of_one_size(problem), gpu, pointers)


def backward_default(problem: Case, gpu: GPU, pointers: bool = False) -> dict[str, int]:
    return spaces.backward_default(of_one_size(problem), gpu, pointers)


def too_wide(problem: Case, gpu: GPU) -> str:
    """Why the smallest blocks of backward's kernels do not fit, or ``""``."""
    return spaces.too_wide(of_one_size(problem), gpu)


def describes(problem: Case, gpu: GPU) -> str:
    """Why descriptors are not for a case."""
    reasons = (spaces.describes(of_size(problem, problem[heads]), gpu) for heads in ("d", "e"))
    return next(filter(None, reasons), "")
