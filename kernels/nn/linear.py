"""Linear layers, fused with the activation that follows or the layer normalisation before."""

import torch

import kernels


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
        return kernels.linear(input, self.weight, self.bias, activation=self.activation, residual=residual)

    def extra_repr(self) -> str:
        """That of ``torch.nn.Linear``, and the activation if there is one."""
        return super().extra_repr() + ("" if self.activation is None else f", activation={self.activation!r}")


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
        return kernels.layer_norm_linear(input, linear.weight, linear.bias, norm.weight, norm.bias, norm.eps)
