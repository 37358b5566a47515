"""Embeddings as modules: of tokens, by a table, and of positions, by rotation."""

import torch

import kernels


class Embedding(torch.nn.Embedding):
    """``torch.nn.Embedding``; ``max_norm``, ``scale_grad_by_freq`` and ``sparse`` are refused when it is called."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The rows that ``input`` names."""
        return kernels.embedding(
            input,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )


class RotaryEmbedding(torch.nn.Module):
    """Rotates pairs of elements of queries and keys by angles that grow with the position (arXiv:2104.09864).

    Pair i of position p turns by p * base^(-2 i / head_dim).  The tables of ``max_positions`` are fp32 whatever dtype
    the module is cast to, and in no state dict.  ``interleaved`` and ``heads_first`` are those of :func:`kernels.rope`.
    """

    def __init__(
        self,
        head_dim: int,
        max_positions: int,
        base: float = 10_000.0,
        interleaved: bool = False,
        heads_first: bool = False,
        device=None,
    ):
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"RotaryEmbedding turns pairs of elements: head_dim {head_dim} is odd")
        self.head_dim, self.max_positions, self.base = head_dim, max_positions, base
        self.interleaved, self.heads_first = interleaved, heads_first
        self._fill(device)

    def _fill(self, device) -> None:
        """The tables, [max_positions, head_dim / 2]; angles in fp64, since their rounding grows with the position."""
        pairs = torch.arange(0, self.head_dim, 2, dtype=torch.float64, device=device)
        positions = torch.arange(self.max_positions, dtype=torch.float64, device=device)
        angles = positions[:, None] * self.base ** (-pairs / self.head_dim)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def _apply(self, function, recurse=True):
        was_meta = self.cos.is_meta
        super()._apply(function, recurse)
        # A cast of the whole model, or its ``to_empty``: no state dict has the tables.
        if self.cos.dtype != torch.float32 or (was_meta and not self.cos.is_meta):
            self._fill(self.cos.device)
        return self

    def forward(
        self, query: torch.Tensor, key: torch.Tensor | None = None, positions: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """The rotated ``query``, or (query, key).

        ``positions``, integers of shape [seq] or [batch, seq], say where the tokens stand; by default 0, 1, ….
        """
        if positions is None:
            seq = query.shape[-2 if self.heads_first else -3]
            if seq > self.max_positions:
                raise ValueError(f"RotaryEmbedding has tables of {self.max_positions} positions, not of {seq}")
            cos, sin = self.cos[:seq], self.sin[:seq]
        else:
            cos, sin = self.cos[positions], self.sin[positions]
        flags = {"interleaved": self.interleaved, "heads_first": self.heads_first}
        return kernels.rope(query, cos, sin, **flags) if key is None else kernels.rope_qk(query, key, cos, sin, **flags)

    def extra_repr(self) -> str:
        """What ``repr`` says."""
        return f"{self.head_dim}, max_positions={self.max_positions}, base={self.base}, interleaved={self.interleaved}"
