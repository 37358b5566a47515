"""What the interpreter does faster gives what Triton gives, bit by bit: each replacement beside what it replaces."""

import functools
import itertools
import random
from types import SimpleNamespace

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


TYPES = [tl.int1, tl.int8, tl.uint8, tl.int16, tl.uint16, tl.int32, tl.uint32, tl.int64, tl.uint64, tl.float16,
         tl.bfloat16, tl.float32, tl.float64, tl.float8e5, tl.pointer_type(tl.float32)]  # fmt: skip
SHAPES = [None, [1], [16], [4, 1], [1, 16], [4, 16], [2, 1, 1], [8]]
NUMBERS = [0, 3, -3, 127, 128, -129, 2**31 - 1, 2**31, 2**32, -(2**63), 2**63, 2**70, True, 0.0, 0.5, -1e300,
           float("inf"), float("nan")]  # fmt: skip


@pytest.fixture
def semantic():
    """As it is while a kernel runs: types answer with NumPy's."""
    scope = interpreter._LangPatchScope()
    interpreter._patch_lang_core(tl, scope)
    yield interpreter.interpreter_semantic
    scope.restore()


def tensor(dtype, shape):
    data = np.arange(np.prod(shape or [1])).reshape(shape or [1]).astype(interpreter._get_np_dtype(dtype))
    return tl.tensor(interpreter.TensorHandle(data, dtype), dtype if shape is None else tl.block_type(dtype, shape))


def outcome(function, *operands):
    """Types, sizes and bytes of what it gives, or how it refuses."""
    try:
        made = function(*operands)
    except Exception as error:
        return type(error), str(error)
    return [(str(one.type), list(one.shape), str(one.handle.dtype), one.handle.data.dtype, one.handle.data.shape,
             one.handle.data.tobytes()) for one in made]  # fmt: skip


def test_shapes_become_alike_as_tritons_do(semantic):
    ours = semantic.broadcast_impl_value
    for left, right in itertools.product(SHAPES, SHAPES):
        for dtypes in ((tl.int1, tl.float32), (tl.pointer_type(tl.float32), tl.int32)):
            for _ in range(2):  # found out, then known
                operands = [tensor(dtype, shape) for dtype, shape in zip(dtypes, (left, right), strict=True)]
                assert outcome(ours, *operands) == outcome(ours.__wrapped__, *operands), (left, right)


@pytest.mark.filterwarnings("ignore:.*encountered in cast")
def test_types_become_alike_as_tritons_do(semantic):
    ours, luck = semantic.binary_op_type_checking_impl, random.Random(0)
    for left, right in itertools.product([*TYPES, *NUMBERS], repeat=2):
        shape = luck.choice(SHAPES)
        for words in ((), (True, True), (True, False), (False, False, False), (False, False, True, True)) * 2:
            operands = [one if type(one) in (int, float, bool) else tensor(one, shape) for one in (left, right)]
            assert outcome(ours, *operands, *words) == outcome(ours.__wrapped__, *operands, *words), (left, right)


def test_a_builtin_is_called_as_triton_calls_it_and_what_is_wrapped_around_it_too():
    @tl.core.builtin
    def plain(x, more=0, _semantic=None):
        return x, more, _semantic

    @functools.wraps(plain)
    def around(x, _semantic=None):
        return "around", plain(x, _semantic=_semantic)

    found = {}
    owner = type("Owner", (), {"plain": plain, "around": around, "other": len})
    for _ in range(2):
        interpreter._patch_builtin(owner, None, SimpleNamespace(set_attr=lambda _, *named: found.update([named])))
    semantic = interpreter.interpreter_semantic
    assert found.keys() == {"plain", "around"}
    assert found["plain"](1, more=2, _semantic=None) == (1, 2, semantic)
    assert found["around"](1) == ("around", (1, 0, semantic))


@pytest.mark.parametrize("begin", [(0, 0), (4, 16), (6, 16), (-4, -16), (100, 0)])
def test_addresses_of_blocks_are_tritons(begin):
    base = interpreter.TensorHandle(np.array([4096], dtype=np.uint64), tl.pointer_type(tl.float32))
    shape, strides, offsets = (
        [interpreter.TensorHandle(np.array([one], dtype=np.int32), tl.int32) for one in words]
        for words in ((7, 20), (20, 1), begin)
    )
    block = interpreter.TensorDescHandle(base, shape, strides, [4, 16], None)
    ours = block.materialize_pointers
    (mine, mask), (tritons, expected) = ours(offsets), ours.__wrapped__(block, offsets)
    assert mine.dtype == tritons.dtype and mine.data.dtype == tritons.data.dtype and mask.dtype == expected.dtype
    assert np.array_equal(mine.data, tritons.data) and np.array_equal(mask, expected)
    offsets[1].data += 1
    for compute in (ours, functools.partial(ours.__wrapped__, block)):
        with pytest.raises(AssertionError, match="16-byte aligned"):
            compute(offsets)


def test_products_of_8_bits_are_tritons():
    drawn = np.random.default_rng(0).integers(-128, 128, (2, 64, 256), dtype=np.int8)
    drawn[0, 0], drawn[1, 0] = -128, -128
    a, b = (interpreter.TensorHandle(one, tl.int8) for one in (drawn[0], drawn[1].T))
    added = interpreter.TensorHandle(np.full((64, 64), 2**31 - 1, dtype=np.int32), tl.int32)
    builder = interpreter.interpreter_builder
    mine, tritons = (dot(a, b, added, None, 0) for dot in (builder.create_dot, functools.partial(
        builder.create_dot.__wrapped__, builder)))  # fmt: skip
    assert mine.dtype == tritons.dtype and mine.data.dtype == tritons.data.dtype
    assert np.array_equal(mine.data, tritons.data)
