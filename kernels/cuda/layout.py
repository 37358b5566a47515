"""What the kernels here ask of a tensor."""

import torch

_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def entry(kernel: str, tensor: torch.Tensor) -> str:
    """The entry function of a kernel for a tensor's dtype; NotImplementedError where there is none."""
    if tensor.dtype not in _DTYPES:
        raise NotImplementedError(f"the CUDA C++ kernel has {', '.join(_DTYPES.values())}, not {tensor.dtype}")
    return f"{kernel}_{_DTYPES[tensor.dtype]}"


def require_vectors(*tensors: torch.Tensor) -> None:
    """Raise NotImplementedError for a tensor that cannot be read by vectors of 16 bytes from its start."""
    for tensor in tensors:
        if not tensor.is_contiguous() or tensor.data_ptr() % 16:
            raise NotImplementedError("the CUDA C++ kernel reads contiguous tensors that start on 16 bytes")
