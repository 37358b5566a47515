"""Kernel tests run on Triton's interpreter, which has to be chosen before a kernel file is imported."""

import os

os.environ["TRITON_INTERPRET"] = "1"
