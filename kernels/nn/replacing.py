"""A model's layers made those of this library, in place: ``kernels.nn.replace(model)``."""

from __future__ import annotations

import collections
import copy
import inspect
import sys
from collections.abc import Callable, Iterable

import torch
from torch.nn import functional as F

import kernels

from .activations import GELU, SiLU
from .embeddings import Embedding
from .linear import Linear
from .normalisation import LayerNorm, RMSNorm

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_TRIED = 8
"""Columns of inputs that tell whether a module computes what its name and attributes promise."""
_SIZES = (1e-4, 1.0, 1e4)
"""By what those inputs are multiplied."""


class ScaledRMSNorm(torch.nn.Module):
    """An RMS norm with a ``weight`` and an ``eps``, by whatever class it was made."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalised input."""
        return kernels.rms_norm(input, self.weight.shape, self.weight, _eps_of(self))

    def extra_repr(self) -> str:
        """What ``repr`` says, as of torch's."""
        return f"{tuple(self.weight.shape)}, eps={_eps_of(self)}"


def _eps_of(module: torch.nn.Module) -> float | None:
    """A norm's eps, by either of its usual names."""
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


class GatedMLP(torch.nn.Module):
    """``down_proj(silu(gate_proj(x)) * up_proj(x))``, the product in one kernel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The MLP's output for x [..., features]."""
        return self.down_proj(kernels.swiglu(self.gate_proj(x), self.up_proj(x)))


class LinearByColumns(torch.nn.Module):
    """A linear layer whose ``weight`` is [in, out], as GPT-2's is stored."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x @ weight + bias``."""
        return kernels.linear(x, self.weight.t(), self.bias)

    def extra_repr(self) -> str:
        """What ``repr`` says, as of torch's."""
        return f"in_features={self.weight.shape[0]}, out_features={self.weight.shape[1]}"


def replace(model: torch.nn.Module, leave: Iterable[str] = ()) -> collections.Counter[str]:
    """Make the layers of ``model`` those of this library, in place; how many of each kind were replaced.

    Layers of torch, and those of other libraries that give the same on trial: linear layers, embeddings, layer
    and RMS norms, GELU and SiLU, gated MLPs of ``gate_proj``, ``up_proj`` and ``down_proj``.  A module changes its
    class alone: names, parameters, hooks and state dicts stay.  Of a model of the package transformers attention, the
    loss and the rotation of queries and keys are replaced, too; the last one, and a loss that the model's own code
    makes, for all models of that architecture in this process.

    ``leave`` names kinds that stay as they are, as the result names them: ``replace(model, leave=["Linear"])``.  What
    the kernels do not have (other dtypes, sparse gradients, dropout in attention) stays torch's.  Layers run where
    kernels do, on a GPU.

    Raises ValueError for an unknown kind in ``leave``.
    """
    leave = {leave} if isinstance(leave, str) else set(leave)
    if unknown := leave - set(KINDS):
        raise ValueError(f"replace: leave names {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    found: collections.Counter[str] = collections.Counter()
    doubles = _has_doubles(model)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):  # of trials, which draw numbers
        for module in model.modules():
            # A layer without parameters has its model's dtype; a forward of the object's own would run as before.
            if _has_doubles(module) or (doubles and next(module.parameters(), None) is None) or _is_patched(module):
                continue
            for kind, make in _OF_MODULES.items():
                if kind not in leave and make(module):
                    found[kind] += 1
                    break
    if "transformers" in sys.modules:
        from . import hugging_face

        for kind, put in hugging_face.PARTS.items():
            if kind not in leave and (count := put(model)):
                found[kind] += count
    return found


def _has_doubles(module: torch.nn.Module) -> bool:
    return any(parameter.dtype == torch.float64 for parameter in module.parameters())


def _has_kernels(weight: torch.Tensor) -> bool:
    """Whether it is of a dtype of the kernels, and of no class with products of its own, as quantised ones are."""
    own = type(weight).__torch_function__ is not torch._C._disabled_torch_function_impl
    return weight.dtype in _DTYPES and (type(weight) is torch.Tensor or not own)


def _is_patched(module: torch.nn.Module) -> bool:
    return "forward" in vars(module)


def _has_hooks(module: torch.nn.Module) -> bool:
    """Of calls: those that a call of its ``forward`` alone would not run."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def _linear(module: torch.nn.Module) -> bool:
    if type(module) is not torch.nn.Linear or not _has_kernels(module.weight):
        return False
    module.__class__, module.activation = Linear, None
    return True


def _embedding(module: torch.nn.Module) -> bool:
    plain = type(module) is torch.nn.Embedding and _has_kernels(module.weight)
    if not plain or module.max_norm is not None or module.sparse or module.scale_grad_by_freq:
        return False
    module.__class__ = Embedding
    return True


def _layer_norm(module: torch.nn.Module) -> bool:
    plain = type(module) is torch.nn.LayerNorm and len(module.normalized_shape) == 1
    if not plain or (module.weight is not None and not _has_kernels(module.weight)):
        return False
    module.__class__ = LayerNorm
    return True


def _rms_norm(module: torch.nn.Module) -> bool:
    if type(module) is torch.nn.RMSNorm and len(module.normalized_shape) == 1:
        module.__class__ = RMSNorm
        return True
    weight, eps = _only_parameter(module), _eps_of(module)
    named = "RMSNorm" in type(module).__name__ and not isinstance(module, ScaledRMSNorm)
    if not named or weight is None or weight.dim() != 1 or not isinstance(eps, float):
        return False
    # A norm that scales by 1 + weight is another one.
    scale = torch.linspace(0.5, 1.5, len(weight), dtype=torch.float32)
    own = {"weight": torch.nn.Parameter(scale)}
    if not _gives(module, lambda x: F.rms_norm(x, weight.shape, scale, eps), len(weight), _parameters=own):
        return False
    module.__class__ = ScaledRMSNorm
    return True


def _gelu(module: torch.nn.Module) -> bool:
    if _is_activation(module):
        for approximate in ("none", "tanh"):
            if _gives(module, lambda x, how=approximate: F.gelu(x, approximate=how)):
                module.__class__, module.approximate = GELU, approximate
                return True
    return False


def _silu(module: torch.nn.Module) -> bool:
    if not _is_activation(module) or getattr(module, "inplace", False) or not _gives(module, F.silu):
        return False
    module.__class__, module.inplace = SiLU, False
    return True


def _is_activation(module: torch.nn.Module) -> bool:
    """Whether it may be one that has a kernel: by its name, and with nothing to keep."""
    named = any(name in type(module).__name__ for name in ("GELU", "SiLU", "Swish"))
    ours = type(module).__module__.startswith("kernels.")
    return named and not ours and not next(module.parameters(), None) and not next(module.children(), None)


_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def _gated_mlp(module: torch.nn.Module) -> bool:
    children = dict(module.named_children())
    activation = children.pop("act_fn", None)
    if set(children) != set(_PROJECTIONS) or activation is None or type(module).__module__.startswith("kernels."):
        return False
    if not all(isinstance(child, torch.nn.Linear) for child in children.values()) or not _gives(activation, F.silu):
        return False
    if _has_hooks(activation) or _is_patched(activation):  # which is called no more
        return False
    # Of small layers in its place: those of a large model are not worth a product each.
    small = {name: torch.nn.Linear(_TRIED, _TRIED, dtype=torch.float32) for name in _PROJECTIONS}

    def expected(x: torch.Tensor) -> torch.Tensor:
        return small["down_proj"](F.silu(small["gate_proj"](x)) * small["up_proj"](x))

    if not _gives(module, expected, _modules={"act_fn": activation, **small}):
        return False
    module.__class__ = GatedMLP
    return True


def _linear_by_columns(module: torch.nn.Module) -> bool:
    parameters = dict(module.named_parameters(recurse=False))
    if type(module).__name__ != "Conv1D" or set(parameters) != {"weight", "bias"} or module.weight.dim() != 2:
        return False
    if not _has_kernels(module.weight):
        return False
    small = torch.nn.Linear(_TRIED, _TRIED, dtype=torch.float32)
    own = {"weight": torch.nn.Parameter(small.weight.detach().t().contiguous()), "bias": small.bias}
    if not _gives(module, small, _parameters=own, nf=_TRIED):  # its output's features, which it keeps
        return False
    module.__class__ = LinearByColumns
    return True


def _only_parameter(module: torch.nn.Module) -> torch.Tensor | None:
    parameters = dict(module.named_parameters())
    return parameters.get("weight") if len(parameters) == 1 and not next(module.children(), None) else None


def _gives(
    module: torch.nn.Module, expected: Callable[[torch.Tensor], torch.Tensor], columns: int = _TRIED, **instead: object
) -> bool:
    """Whether the module, with these attributes instead of its own, gives what ``expected`` does, in fp32 on the host.

    Tried on a copy, in training (dropout) and without, at sizes where an epsilon and a clamp show, and of three
    dimensions, of which a norm may take another than the last.
    """
    try:
        if len(inspect.signature(module.forward).parameters) != 1:  # a gate or a residual may come, too
            return False
        x = torch.linspace(-3.0, 3.0, 2 * columns, dtype=torch.float32).view(2, columns)
        x = x * torch.tensor(_SIZES, dtype=torch.float32).view(-1, 1, 1)
        with torch.no_grad():
            wanted = expected(x)
            for training in (False, True):
                tried = copy.copy(module)
                vars(tried).update(instead, training=training)
                found = tried.forward(x)
                if found.shape != x.shape or not torch.allclose(found, wanted, rtol=1e-5, atol=1e-5):
                    return False
    except Exception:  # of foreign code: what it raises says that it is another thing
        return False
    return True


_OF_MODULES: dict[str, Callable[[torch.nn.Module], bool]] = {
    "GatedMLP": _gated_mlp,
    "Linear": _linear,
    "LinearByColumns": _linear_by_columns,
    "Embedding": _embedding,
    "LayerNorm": _layer_norm,
    "RMSNorm": _rms_norm,
    "GELU": _gelu,
    "SiLU": _silu,
}

KINDS = (*_OF_MODULES, "attention", "rotation", "loss")
"""What :func:`replace` knows, as its result and ``leave`` name it."""
