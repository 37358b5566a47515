"""The checks by which faults are caught, by short names."""

VALUES, WRITTEN, UNCHANGED, REPEATABLE = "values", "written_once_and_inside", "inputs_unchanged", "repeatable"
NAN_INF, LARGE, OFFSET = "nan_inf", "large_magnitudes", "common_offset"
FUNCTION, GRADIENTS, NON_CONTIGUOUS = "public_function", "gradients", "non_contiguous"
