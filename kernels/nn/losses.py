"""Cross-entropy of logits as a module."""

import torch

from kernels import cross_entropy


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """``torch.nn.CrossEntropyLoss`` of logits [m, n] and class indices.

    ``z_loss`` and ``inplace_gradient`` are those of :func:`kernels.cross_entropy`.
    """

    def __init__(self, *args, z_loss: float = 0.0, inplace_gradient: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.z_loss, self.inplace_gradient = z_loss, inplace_gradient

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss: a scalar, or one value a row with ``reduction="none"``."""
        return cross_entropy(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
            inplace_gradient=self.inplace_gradient,
        )
