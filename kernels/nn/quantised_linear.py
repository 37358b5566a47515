"""Linear layers with weights of 4 and 8 bits, as modules."""

import torch

from kernels import linear_w4a16, linear_w8a16, pack_w4, pack_w8
from kernels.common.packed import Packed


class _QuantisedLinear(torch.nn.Module):
    """A linear layer whose packed weights are buffers: they have no gradient, its input and its bias have."""

    def __init__(self, packed: Packed, bias: torch.Tensor | None = None):
        super().__init__()
        self.register_buffer("words", packed.words)
        self.register_buffer("scales", packed.scales)
        self.register_buffer("zeros", packed.zeros)
        self.out_features, self.in_features = packed.out_features, packed.in_features
        self.group_size = packed.group_size
        self.bias = None if bias is None else torch.nn.Parameter(bias.detach().clone(), bias.requires_grad)

    @property
    def packed(self) -> Packed:
        """The weights as the kernels take them."""
        return Packed(self.words, self.scales, self.zeros, self.out_features, self.in_features, self.group_size)

    def _apply(self, fn, recurse=True):
        """As ``torch.nn.Module`` does it, save that scales keep the dtype that the weights were packed with."""
        if fn(self.scales[:0]).dtype != self.scales.dtype:
            raise TypeError(f"packed weights are for inputs in {self.scales.dtype}: pack them again for another dtype")
        return super()._apply(fn, recurse)

    def extra_repr(self) -> str:
        """What ``repr`` says."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"group_size={self.group_size}"
        )


def _plain(linear: torch.nn.Linear) -> torch.nn.Linear:
    if activation := getattr(linear, "activation", None):
        raise ValueError(f"packed layers have no activation: take it out, {activation!r}, and apply it to their output")
    return linear


class LinearW4(_QuantisedLinear):
    """A linear layer with weights of 4 bits: ``LinearW4.of(torch.nn.Linear(…))``; see :func:`kernels.pack_w4`."""

    @classmethod
    def of(cls, linear: torch.nn.Linear, group_size: int = 128, symmetric: bool = False) -> "LinearW4":
        """The layer with its weights quantised; fp16 or bf16."""
        return cls(pack_w4(_plain(linear).weight, group_size, symmetric), linear.bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input`` [..., in_features] to [..., out_features]."""
        output = linear_w4a16(input, self.packed)
        return output if self.bias is None else output + self.bias


class LinearW8(_QuantisedLinear):
    """A linear layer with weights of 8 bits: ``LinearW8.of(torch.nn.Linear(…))``; see :func:`kernels.pack_w8`."""

    @classmethod
    def of(cls, linear: torch.nn.Linear, group_size: int | None = None) -> "LinearW8":
        """The layer with its weights quantised; fp16 or bf16."""
        return cls(pack_w8(_plain(linear).weight, group_size), linear.bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input`` [..., in_features] to [..., out_features]."""
        output = linear_w8a16(input, self.packed)
        return output if self.bias is None else output + self.bias
