"""What layer_norm and rms_norm share: autocast with a residual, checks of arguments, the traffic of a pass."""

import torch
from atlas.declaration import Case, element_size, normal
from atlas.operators import autocast

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def under_autocast(operation, input, residual, *parameters):
    """(input, total, *parameters) to compute the norm ``operation`` of ``input + residual`` with, as torch would.

    Where the sum is cast before it is normalised, ``input`` is the cast one and ``total`` the sum, which is returned as
    it is: what is left to do is a norm without a residual.  Else ``total`` is None.
    """
    total = input if residual is None else input + residual  # in their own dtype, as torch adds
    out, *parameters = autocast(operation, total, *parameters)
    if residual is None:
        return out, None, *parameters
    return (input, None, *parameters) if out is total else (out, total, *parameters)


def shape_of(function, normalized_shape, input):
    """``normalized_shape`` as a tuple; ValueError unless it is the end of the input's shape, TypeError of no tensor."""
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"{function} takes a tensor: {input!r}")
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or input.shape[-len(shape) :] != shape:
        raise ValueError(f"{function}: normalized_shape {shape} is not the end of the input's {tuple(input.shape)}")
    return shape


def checked(function, name, tensor, shape, input):
    """The tensor, contiguous, if it has this shape and the input's dtype and device; None stays None.

    Raises TypeError for another dtype, ValueError for another shape or device.
    """
    if tensor is not None and tensor.dtype != input.dtype:
        raise TypeError(f"{function} takes a {name} of the input's {input.dtype}: {tensor.dtype}")
    return parameter(function, name, tensor, shape, input)


def parameter(function, name, tensor, shape, input):
    """As :func:`checked`, for a parameter of the norm: it may have another of the dtypes than the input."""
    if tensor is None:
        return None
    if tensor.dtype != input.dtype and tensor.dtype not in _DTYPES:
        raise TypeError(f"{function} takes a {name} in fp32, fp16 or bf16: {tensor.dtype}")
    if tensor.shape != shape or tensor.device != input.device:
        raise ValueError(
            f"{function} takes a {name} of shape {tuple(shape)} on {input.device}: "
            f"{tuple(tensor.shape)} on {tensor.device}"
        )
    return tensor.contiguous()


def in_one_dtype(input, *parameters):
    """``input`` and parameters, as torch's functions take them, which mix none; in fp32 where they differ."""
    if all(tensor is None or tensor.dtype == input.dtype for tensor in parameters):
        return input, *parameters
    return tuple(tensor if tensor is None else tensor.float() for tensor in (input, *parameters))


def has_residual(problem: Case) -> bool:
    """Whether a residual is added before rows are normalised."""
    return dict(problem.sizes).get("residual", False)


def parameter_draw(problem: Case, device, generator):
    """``draw(*shape)`` of parameters: in fp32 where the case says that they are ``wide``."""
    if not dict(problem.sizes).get("wide", False):
        return normal(problem, device, generator)
    return lambda *shape: torch.randn(shape, dtype=torch.float32, device=device, generator=generator)


def traffic(matrices: str, with_residual: str, columns: str, statistics: str):
    """``bytes`` of a pass: matrices [m, n], more of them with a residual, and columns [n] in the case's dtype,
    statistics [m] in fp32; names with spaces between.
    """

    def cost(c: Case) -> dict[str, int]:
        size = element_size(c.dtype)
        wanted = matrices.split() + (with_residual.split() if has_residual(c) else [])
        return (
            dict.fromkeys(wanted, c["m"] * c["n"] * size)
            | dict.fromkeys(statistics.split(), c["m"] * element_size("fp32"))
            | dict.fromkeys(columns.split(), c["n"] * size)
        )

    return cost
