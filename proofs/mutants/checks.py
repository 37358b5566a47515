"""Names of the checks that mutants are caught by, and reasons why the interpreter cannot show one."""

VALUES, WRITTEN, UNCHANGED, REPEATABLE = "values", "written_once_and_inside", "inputs_unchanged", "repeatable"
NAN_INF, LARGE, OFFSET = "nan_inf", "large_magnitudes", "common_offset"
FUNCTION, GRADIENTS, NON_CONTIGUOUS = "public_function", "gradients", "non_contiguous"

HUGE = "needs tensors of more than 2^31 elements"
IN_ORDER = "the interpreter runs programs one after the other"
