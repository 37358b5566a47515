"""How wide attention's kernels read masks: no value shows it."""

import inside
import pytest

BACKWARD = {"_keys_kernel", "_queries_kernel"}


@pytest.mark.parametrize(("rows", "narrow"), [(328, set()), (325, {"_forward_kernel", "_copy_kernel"})])
def test_masks_are_read_16_bytes_at_a_time_whose_rows_begin_there(compiling, rows, narrow):
    """328 is a multiple of 8, which Triton is not told of a stride; of 325 there is a copy for those who read twice."""
    reads = compiling(inside.mask_reads, rows)
    assert {name for name, what in reads.items() if "load 16" in what or "copy 16" in what} == narrow
    assert set(reads) >= BACKWARD
