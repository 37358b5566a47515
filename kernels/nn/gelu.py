"""GELU as a module."""

import torch

from kernels import gelu


class GELU(torch.nn.GELU):
    """``torch.nn.GELU``."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``gelu(input)``, by erf or, with ``approximate="tanh"``, by tanh."""
        return gelu(input, approximate=self.approximate)
