"""SiLU as a module."""

import torch

from kernels import silu


class SiLU(torch.nn.SiLU):
    """``torch.nn.SiLU``."""

    def __init__(self, inplace: bool = False):
        if inplace:
            raise NotImplementedError("SiLU has no inplace=True")
        super().__init__()

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input * sigmoid(input)``."""
        return silu(input)
