"""torch's own sample inputs, given to the functions that this library names as torch does."""
