"""Softmax and its logarithm as modules."""

import torch

from kernels import log_softmax, softmax


def _named(dim: int | None) -> int:
    """The dimension; torch guesses where none is named, and warns that it will not for ever."""
    if dim is None:
        raise ValueError("name the dimension to normalise: dim=-1")
    return dim


class Softmax(torch.nn.Softmax):
    """``torch.nn.Softmax``; ``dim`` must be named."""

    def __init__(self, dim: int | None = None):
        super().__init__(_named(dim))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input`` normalised along ``dim``."""
        return softmax(input, self.dim)


class LogSoftmax(torch.nn.LogSoftmax):
    """``torch.nn.LogSoftmax``; ``dim`` must be named."""

    def __init__(self, dim: int | None = None):
        super().__init__(_named(dim))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The logarithm of ``input`` normalised along ``dim``."""
        return log_softmax(input, self.dim)
