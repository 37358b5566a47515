"""What the interpreter does faster gives what Triton gives, bit by bit: each replacement beside what it replaces."""

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter

BF16 = np.arange(2**16, dtype=np.uint16)
DRAWN = np.random.default_rng(0).integers(0, 2**32, 2**16, dtype=np.uint32)
FP32 = np.concatenate([DRAWN, BF16.astype(np.uint32) << 16])


def normal(bits, exponent):
    """The patterns that stand for no subnormal number: those are converted by Triton."""
    return bits[((bits & exponent) != 0) | ((bits << 1) == 0)]


@pytest.mark.parametrize(
    ("data", "source", "target"),
    [
        (BF16, tl.bfloat16, tl.float32),
        (normal(BF16, 0x7F80), tl.bfloat16, tl.float32),
        (FP32.view(np.float32), tl.float32, tl.bfloat16),
        (normal(FP32, 0x7F800000).view(np.float32), tl.float32, tl.bfloat16),
    ],
    ids=["every bf16", "every normal bf16", "fp32", "normal fp32"],
)
def test_conversions_are_tritons(data, source, target):
    ours = interpreter._convert_float
    for shaped in (data, data[: data.size // 4 * 4].reshape(-1, 4).T, data[:1].reshape(()), data[:0]):
        mine, tritons = (convert(shaped, source, target, None) for convert in (ours, ours.__wrapped__))
        assert mine.dtype == tritons.dtype and mine.shape == tritons.shape and np.array_equal(mine, tritons)


@pytest.mark.parametrize("element", [tl.bfloat16, tl.int1, tl.pointer_type(tl.float32), tl.pointer_type(tl.int8)])
def test_types_of_blocks_are_tritons(element):
    ours = tl.block_type.__init__
    for shape in ([16], [16, 32], tl.tuple([16, 32]), [tl.constexpr(16), tl.constexpr(32)], [1, 32]):
        first, second, tritons = (object.__new__(tl.block_type) for _ in range(3))
        for made, derive in ((first, ours), (second, ours), (tritons, ours.__wrapped__)):
            derive(made, element, shape)
        assert second.element_ty is element and (second.name, second.numel) == (tritons.name, tritons.numel)
        assert list(second.shape) == list(tritons.shape) and second == tritons
        assert interpreter._get_np_dtype(second) == interpreter._get_np_dtype.__wrapped__(second)


def test_a_block_that_triton_refuses_is_refused_each_time():
    for _ in range(2):
        with pytest.raises(ValueError, match="power of 2"):
            tl.block_type(tl.float32, [3])


def test_what_is_left_out_is_read_by_nobody():
    options = interpreter.interpreter_builder.options
    assert not options.sanitize_overflow and not options.debug
