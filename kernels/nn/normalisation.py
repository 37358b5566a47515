"""Modules that normalise rows: layer and RMS normalisation, softmax and its logarithm."""

import torch

import kernels


class LayerNorm(torch.nn.LayerNorm):
    """``torch.nn.LayerNorm``, fused with the addition of a residual where one is given."""

    def forward(self, input: torch.Tensor, residual: torch.Tensor | None = None):
        """The normalised input; with a residual (normalised sum, ``input + residual``)."""
        return kernels.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps, residual)


class RMSNorm(torch.nn.RMSNorm):
    """``torch.nn.RMSNorm``, fused with the addition of a residual where one is given."""

    def forward(self, input: torch.Tensor, residual: torch.Tensor | None = None):
        """The normalised input; with a residual (normalised sum, ``input + residual``)."""
        return kernels.rms_norm(input, self.normalized_shape, self.weight, self.eps, residual)


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
        return kernels.softmax(input, self.dim)


class LogSoftmax(torch.nn.LogSoftmax):
    """``torch.nn.LogSoftmax``; ``dim`` must be named."""

    def __init__(self, dim: int | None = None):
        super().__init__(_named(dim))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The logarithm of ``input`` normalised along ``dim``."""
        return kernels.log_softmax(input, self.dim)
