"""The axis that a ``dim`` names, as torch reads it."""

import operator

import torch


def axis_of(name: str, dim, rank: int) -> int:
    """``dim`` counted from 0, of an input of ``rank`` axes to the function ``name``; a scalar has one axis, 0 or -1.

    Raises TypeError for what is no integer, as torch counts them (True is none), and IndexError for an axis that is not
    there.
    """
    if type(dim) is not int:
        dim = _integer(name, dim)
    rank = max(rank, 1)
    if not -rank <= dim < rank:
        raise IndexError(f"{name}: dim {dim} is outside [{-rank}, {rank - 1}] of the input's axes")
    if torch.compiler.is_compiling():
        return list(range(rank))[dim]  # a number that torch.compile knows, where dim is an argument of what it compiles
    return dim % rank


def _integer(name: str, dim) -> int:
    """NumPy's integers, and tensors of one, are integers too."""
    try:
        if not isinstance(dim, bool):
            return operator.index(dim)
    except TypeError:
        pass
    raise TypeError(f"{name} takes integers as dim, not {dim!r}")
