"""Guard bands: what they catch, and what they must leave as it is."""

import pytest
import torch
from atlas.validation.guards import Guard, place

ALIGNMENT = 512
"""Bytes that torch's CUDA allocator aligns to: an address modulo this decides which loads a kernel may widen."""

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.int64, torch.int32, torch.int8, torch.bool]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_allocation_keeps_shape_dtype_and_strides_and_is_seen_as_unwritten(dtype):
    results = []
    for run in (0, 1):
        with Guard(run) as guard:
            out = torch.empty((3, 5), dtype=dtype)
        assert (out.shape, out.dtype, out.stride()) == ((3, 5), dtype, (5, 1))
        results.append(guard.of(out).holds_pattern(out))
    assert bool((results[0] & results[1]).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_what_was_not_written_is_nan_in_floating_types(dtype):
    with Guard(0):
        out = torch.empty(7, dtype=dtype)
    assert bool(out.float().isnan().all())


def test_every_way_to_allocate_is_seen():
    x = torch.ones(4, 6).t()
    with Guard(0) as guard:
        tensors = [
            torch.empty(6, 4), torch.empty_like(x), torch.empty_strided((2, 2), (3, 1)), x.new_empty(3),
            x.new_empty_strided((2,), (2,)), torch.zeros(3), torch.zeros_like(x), x.new_zeros(3), torch.ones(2),
            torch.full((2,), 7.0), torch.full_like(x, 7.0), x.new_full((2,), 7.0),
        ]  # fmt: skip
    assert all(guard.of(tensor) is not None for tensor in tensors)
    assert tensors[1].stride() == x.stride()
    # What the launcher asked to be filled stays filled.
    assert bool((tensors[5] == 0).all()) and bool((tensors[9] == 7).all())


def test_meta_and_empty_tensors_are_left_alone():
    with Guard(0) as guard:
        assert torch.empty(4, device="meta").device.type == "meta"
        assert torch.empty(0, 3).shape == (0, 3)
    assert guard.allocated == []


@pytest.mark.parametrize("offset", [0, 1, 4, 100])
def test_an_input_keeps_its_address_modulo_the_alignment_and_its_strides(offset):
    x = torch.arange(400.0)[offset : offset + 60].view(6, 10)[:, ::2]
    placed = place(x, run=0, keep=True).tensor
    assert placed.data_ptr() % ALIGNMENT == x.data_ptr() % ALIGNMENT
    assert placed.stride() == x.stride()
    assert torch.equal(placed, x)


def test_an_expanded_input_stays_expanded():
    x = torch.arange(5.0).expand(4, 5)
    placed = place(x, run=0, keep=True).tensor
    assert placed.stride() == (0, 1) and torch.equal(placed, x)


@pytest.mark.parametrize(
    ("at", "words"), [(-1, "1 element(s) before its start, the nearest 1"), (15, "the first 1 past")]
)
def test_a_store_outside_is_found_with_its_distance(at, words):
    with Guard(0) as guard:
        out = torch.empty(3, 5)
    out.as_strided((1,), (1,), out.storage_offset() + at).fill_(0)
    assert words in guard.overstepped((out,), ("out",))
    assert "stored outside out" in guard.overstepped((out,), ("out",))


@pytest.mark.parametrize(
    ("at", "words"), [(-1, "1 element(s) before its start, the nearest 1"), (5, "the first 1 past")]
)
def test_a_store_outside_an_input_is_found_too(at, words):
    guard = Guard(0)
    x = guard.place_inputs({"x": torch.ones(5), "w": torch.ones(3)})["x"]
    assert guard.overstepped((), ()) == ""
    x.as_strided((1,), (1,), x.storage_offset() + at).fill_(0)
    found = guard.overstepped((), ())
    assert found.startswith("stored outside input x: ") and words in found


@pytest.mark.parametrize("run", [0, 1])
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.is_floating_point])
def test_what_is_read_past_an_input_and_stored_past_an_output_is_found(dtype, run):
    # As a kernel without a mask does: its last program copies beyond both ends.
    with Guard(run) as guard:
        x = guard.place_inputs({"x": torch.ones(5, dtype=dtype)})["x"]
        out = torch.empty(5, dtype=dtype)
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    past_x, past_out = (t.view(size).as_strided((1,), (1,), t.storage_offset() + 5) for t in (x, out))
    past_out.copy_(past_x)
    assert "stored outside out: 1 element(s) past its end" in guard.overstepped((out,), ("out",))


def test_reading_past_an_input_gives_nan_and_past_an_index_a_small_number():
    guard = Guard(0)
    inputs = guard.place_inputs({"x": torch.ones(5), "labels": torch.zeros(5, dtype=torch.int64), "eps": 1e-5})
    past = {n: t.as_strided((1,), (1,), t.storage_offset() + 5) for n, t in inputs.items() if n != "eps"}
    assert bool(past["x"].isnan().all()) and int(past["labels"]) == 1
    assert inputs["eps"] == 1e-5


def test_a_store_between_the_elements_of_a_strided_input_is_found():
    # In the caller's memory they are another view's elements: the other half of a packed projection.
    x = torch.arange(12.0).view(6, 2)[:, 0]
    guard = Guard(0)
    placed = guard.place_inputs({"x": x})["x"]
    assert guard.changed_inputs({"x": x}) == {}
    placed.as_strided((1,), (1,), placed.storage_offset() + 3).fill_(0)
    (changed,) = guard.changed_inputs({"x": x}).values()
    assert not changed.any(), "none of its own elements"


def test_a_changed_input_is_found_bit_by_bit():
    x = torch.tensor([0.0, float("nan"), 1.0])
    guard = Guard(0)
    placed = guard.place_inputs({"x": x})["x"]
    assert guard.changed_inputs({"x": x}) == {}
    placed[0] = -0.0  # equal as a number, and still not what was there
    assert guard.changed_inputs({"x": x})["x"].tolist() == [True, False, False]
