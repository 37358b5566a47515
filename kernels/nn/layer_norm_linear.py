"""Layer normalisation fused with the linear layer that follows it, as a module."""

import torch

from kernels import layer_norm_linear


class LayerNormLinear(torch.nn.Sequential):
    """``torch.nn.Sequential(torch.nn.LayerNorm(in_features), torch.nn.Linear(in_features, out_features))`` as one.

    Its state dicts are those of that sequence.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, eps: float = 1e-5, device=None, dtype=None
    ):
        super().__init__(
            torch.nn.LayerNorm(in_features, eps, device=device, dtype=dtype),
            torch.nn.Linear(in_features, out_features, bias, device=device, dtype=dtype),
        )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The linear layer's output for the normalised ``input``."""
        norm, linear = self
        return layer_norm_linear(input, linear.weight, linear.bias, norm.weight, norm.bias, norm.eps)
