"""Cross-entropy as a module: of logits, and of a linear layer's output, which then is never in memory as a whole."""

import torch

import kernels


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """``torch.nn.CrossEntropyLoss`` of logits [n], [m, n] or [m, n, ...] and class indices or probabilities.

    ``z_loss`` and ``inplace_gradient`` are those of :func:`kernels.cross_entropy`.
    """

    def __init__(self, *args, z_loss: float = 0.0, inplace_gradient: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.z_loss, self.inplace_gradient = z_loss, inplace_gradient

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss: a scalar, or one value a row with ``reduction="none"``."""
        return kernels.cross_entropy(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
            inplace_gradient=self.inplace_gradient,
        )


class LinearCrossEntropyLoss(torch.nn.Module):
    """``torch.nn.LinearCrossEntropyLoss`` (torch 2.13) of rows [m, in_features] and class indices.

    The linear layer is ``linear``; its weight may be shared, ``loss.linear.weight = embedding.weight``.  ``z_loss`` is
    that of :func:`kernels.linear_cross_entropy`.  Raises NotImplementedError for ``out_features``, ``weight`` and
    ``options``, which torch's has.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device=None,
        dtype=None,
        reduction: str = "mean",
        weight: torch.Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        options=None,
    ):
        if len(out_features) or weight is not None or options is not None:
            raise NotImplementedError(
                "LinearCrossEntropyLoss is of rows and class indices: it has no out_features, weight or options"
            )
        super().__init__()
        self.linear = torch.nn.Linear(in_features, num_classes, bias=bias, device=device, dtype=dtype)
        self.reduction, self.ignore_index = reduction, ignore_index
        self.label_smoothing, self.z_loss = label_smoothing, z_loss

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss: a scalar, or one value a row with ``reduction="none"``."""
        return kernels.linear_cross_entropy(
            input,
            self.linear.weight,
            target,
            linear_bias=self.linear.bias,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
        )

    def extra_repr(self) -> str:
        """What ``repr`` says besides the linear layer."""
        return f"reduction={self.reduction}, ignore_index={self.ignore_index}, label_smoothing={self.label_smoothing}"
