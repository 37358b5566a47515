"""RMS normalisation as a module."""

import torch

from kernels import rms_norm


class RMSNorm(torch.nn.RMSNorm):
    """``torch.nn.RMSNorm``, fused with the addition of a residual where one is given."""

    def forward(self, input: torch.Tensor, residual: torch.Tensor | None = None):
        """The normalised input; with a residual (normalised sum, ``input + residual``)."""
        return rms_norm(input, self.normalized_shape, self.weight, self.eps, residual)
