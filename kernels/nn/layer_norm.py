"""Layer normalisation as a module."""

import torch

from kernels import layer_norm


class LayerNorm(torch.nn.LayerNorm):
    """``torch.nn.LayerNorm``, fused with the addition of a residual where one is given."""

    def forward(self, input: torch.Tensor, residual: torch.Tensor | None = None):
        """The normalised input; with a residual (normalised sum, ``input + residual``)."""
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps, residual)
