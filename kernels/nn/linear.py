"""A linear layer with its activation, as a module."""

import torch

from kernels import linear


class Linear(torch.nn.Linear):
    """``torch.nn.Linear`` followed by ``activation``: None, "relu", "gelu", "gelu_tanh" or "silu"."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device=None,
        dtype=None,
        *,
        activation: str | None = None,
    ):
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation

    def forward(self, input: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """``activation(input @ weight.T + bias)``, and ``residual`` added to it."""
        return linear(input, self.weight, self.bias, activation=self.activation, residual=residual)

    def extra_repr(self) -> str:
        """That of ``torch.nn.Linear``, and the activation if there is one."""
        return super().extra_repr() + ("" if self.activation is None else f", activation={self.activation!r}")
