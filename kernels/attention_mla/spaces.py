"""Configs of the tiled kernels: those of attention whose heads are all as wide as the wider ones."""

from atlas.declaration import GPU, Case, Config, element_size

from kernels.attention import spaces

from .cases import of_one_size


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
    if problem["e"] * element_size(problem.dtype) % 16:
        return "rows of a value are not aligned to 16 bytes"
    own = {name: problem[name] for name in ("b", "h", "g", "l", "s", "d", "causal")}
    return spaces.describes(Case(problem.dtype, tuple(own.items())), gpu)
