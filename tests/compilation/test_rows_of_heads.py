"""How wide attention's kernels read and write rows of heads: no value shows it."""

import inside
import pytest

SIZES = {"b": 2, "h": 4, "g": 4, "d": 72}
UNMASKED = {"mask": "none", "left": 40, "right": 1}


@pytest.mark.parametrize(
    ("kernel", "variants", "sizes"),
    [
        ("attention", {"forward": "descriptor", "backward": "descriptor"}, {"l": 301, "s": 301, "causal": True}),
        ("attention", {"backward": "gluon"}, {"l": 301, "s": 301, "causal": True}),
        ("attention", {"backward": "gluon"}, {"l": 86, "s": 86, "causal": False}),
        ("attention_masked", {"forward": "descriptor", "backward": "descriptor"}, {"l": 301, "s": 301} | UNMASKED),
        ("attention_masked", {"backward": "few_keys"}, {"l": 86, "s": 86} | UNMASKED),
    ],
)
def test_heads_of_an_odd_multiple_of_16_bytes_are_accessed_16_bytes_at_a_time(compiling, kernel, variants, sizes):
    """Of strides Triton asks whether they are multiples of 16 elements, and 72 is none."""
    accesses = compiling(inside.accesses_of_rows, kernel, variants, SIZES | sizes)
    assert not {name: what for name, what in accesses.items() if "load 16" in what or "store 16" in what}
