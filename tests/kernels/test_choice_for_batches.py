"""Which variant and tile batched products take by default where their rows lie off 16 bytes or are copied."""

import pytest
from products_under_test import chosen


def test_batches_off_16_bytes_are_padded_where_copies_pay():
    assert chosen("batched_matmul", "h200", "bf16", b=8, m=1024, n=577, k=333)[0] == "direct"
    assert chosen("batched_matmul", "h200", "bf16", b=96, m=197, n=197, k=64, layout="NT")[0] == "direct"
    assert chosen("batched_matmul", "h200", "bf16", b=192, m=77, n=64, k=77)[0] == "tiled"
    assert chosen("batched_matmul", "h200", "fp16", b=48, m=197, n=197, k=64)[0] == "direct"
    for sizes in ({"b": 24, "m": 256, "n": 333, "k": 32}, {"b": 16, "m": 512, "n": 333, "k": 32, "layout": "TN"}):
        variant, config = chosen("batched_matmul", "h200", "bf16", **sizes)
        assert (variant, config["BLOCK_M"], config["BLOCK_N"]) == ("tiled", 64, 64)
    assert chosen("batched_matmul", "h200", "fp32", b=8, m=1024, n=1024, k=256, layout="NT")[0] == "bf16x6"


@pytest.mark.parametrize(
    ("dtype", "sizes", "tile"),
    [
        ("bf16", {"b": 8, "m": 197, "n": 77, "k": 77, "layout": "TN"}, (32, 32, 64)),
        ("fp16", {"b": 24, "m": 197, "n": 64, "k": 77}, (64, 32, 64)),
        ("bf16", {"b": 12, "m": 197, "n": 96, "k": 96, "layout": "TN"}, (32, 32, 64)),  # two for each SM
        ("fp32", {"b": 2, "m": 80, "n": 256, "k": 77}, (32, 32, 16)),
        ("fp32", {"b": 2, "m": 256, "n": 77, "k": 80, "layout": "TN"}, (32, 32, 16)),
    ],
)
def test_few_small_products_off_16_bytes_are_read_singly_in_small_tiles(dtype, sizes, tile):
    variant, config = chosen("batched_matmul", "h200", dtype, **sizes)
    assert (variant, config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]) == ("tiled", *tile)


@pytest.mark.parametrize(
    ("sizes", "variant"),
    [
        ({"b": 96, "m": 1024, "n": 64, "k": 197, "layout": "NT"}, "staged"),
        ({"b": 96, "m": 197, "n": 64, "k": 1024, "layout": "TN"}, "staged"),
        ({"b": 96, "m": 1024, "n": 197, "k": 64}, "staged"),  # a short sum
        ({"b": 4, "m": 2048, "n": 2047, "k": 2047}, "bf16x6"),  # sums that outweigh any copy
        ({"b": 2, "m": 80, "n": 77, "k": 255, "layout": "NT"}, "swizzled"),  # fewer tiles than SMs
    ],
    ids=str,
)
def test_products_of_fp32_are_copied_where_they_outweigh_that_and_read_by_many_tiles_as_they_lie(sizes, variant):
    assert chosen("batched_matmul", "h200", "fp32", **sizes)[0] == variant
