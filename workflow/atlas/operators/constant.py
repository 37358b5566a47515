"""Functions whose result torch.compile takes as it is when it traces a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable)


def constant_result(function: Function) -> Function:
    """``torch.compiler.assume_constant_result`` that does not load torch's compiler: some 2 s of every process.

    All that does is to set this attribute (from torch 2.0 to 2.13), which the compiler reads once it traces a call.
    """
    function._dynamo_marked_constant = True
    return function
