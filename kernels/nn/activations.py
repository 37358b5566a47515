"""Modules of elementwise kernels: activations and dropout."""

import torch

import kernels


class GELU(torch.nn.GELU):
    """``torch.nn.GELU``."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``gelu(input)``, by erf or, with ``approximate="tanh"``, by tanh."""
        return kernels.gelu(input, approximate=self.approximate)


class SiLU(torch.nn.SiLU):
    """``torch.nn.SiLU``."""

    def __init__(self, inplace: bool = False):
        if inplace:
            raise NotImplementedError("SiLU has no inplace=True")
        super().__init__()

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input * sigmoid(input)``."""
        return kernels.silu(input)


class SwiGLU(torch.nn.Module):
    """``silu(gate) * up``: the product between the two linear layers of a gated MLP; it has no parameters."""

    def forward(self, gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
        """``gate`` and ``up`` of one shape, or without ``up`` both in one tensor, gate first."""
        return kernels.swiglu(gate, up)


class Dropout(torch.nn.Dropout):
    """``torch.nn.Dropout``, with a residual added and a seed where they are given."""

    def __init__(self, p: float = 0.5, inplace: bool = False):
        if inplace:
            raise NotImplementedError("Dropout has no inplace=True")
        super().__init__(p)

    def forward(
        self, input: torch.Tensor, residual: torch.Tensor | None = None, seed: int | None = None
    ) -> torch.Tensor:
        """``dropout(input) + residual``; elements are dropped in training alone."""
        return kernels.dropout(input, self.p, self.training, residual, seed)
