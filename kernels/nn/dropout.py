"""Dropout as a module."""

import torch

from kernels import dropout


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
        return dropout(input, self.p, self.training, residual, seed)
