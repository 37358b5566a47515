"""Embedding as a module."""

import torch

from kernels import embedding


class Embedding(torch.nn.Embedding):
    """``torch.nn.Embedding``; ``max_norm``, ``scale_grad_by_freq`` and ``sparse`` are refused when it is called."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The rows that ``input`` names."""
        return embedding(
            input,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )
