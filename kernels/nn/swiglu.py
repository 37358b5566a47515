"""SwiGLU as a module."""

import torch

from kernels import swiglu


class SwiGLU(torch.nn.Module):
    """``silu(gate) * up``: the product between the two linear layers of a gated MLP; it has no parameters."""

    def forward(self, gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
        """``gate`` and ``up`` of one shape, or without ``up`` both in one tensor, gate first."""
        return swiglu(gate, up)
