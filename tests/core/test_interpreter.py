"""Loops with a runtime bound in Triton's interpreter, with the installed Triton and with what 3.6 does.

Each runs in a process of its own: the interpreter binds a process, and other tests compile.
"""

import os
import subprocess
import sys

import pytest
from atlas import ROOT

# Both spellings that the kernels use; both bounds known only at launch, the start too, as in a persistent kernel.
KERNEL = """
import torch
import triton
import triton.language as tl
from atlas import catalog

{before}
catalog.load("vector_add", interpret=True)


@triton.jit
def add_up(out_ptr, n):
    total = 0
    for i in tl.range(tl.program_id(0), n, tl.num_programs(0)):
        total += i
    for i in range(0, tl.cdiv(n, 2)):
        total += 1000 * i
    tl.store(out_ptr + tl.program_id(0), total)


out = torch.zeros(2, dtype=torch.int32)
add_up[(2,)](out, 7)
print(out.tolist(), hasattr(tl.tensor, "__index__"))
"""

# The one line of 3.6 that differs, so that a test with a later Triton reaches the repair; NumPy 2.4 refuses it.
AS_TRITON_36 = """
from triton.runtime import interpreter

triton.__version__ = "3.6.0"
later = interpreter._patch_lang_tensor


def earlier(tensor, scope):
    later(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data))


interpreter._patch_lang_tensor = earlier
"""

UNTOUCHED = """
from triton.runtime import interpreter
from atlas.host.interpreter import allow_runtime_bounds

triton.__version__ = "3.7.0"
before = interpreter._patch_lang_tensor
allow_runtime_bounds()
assert interpreter._patch_lang_tensor is before
"""


CALLS = """
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from atlas import catalog

patched = []
patch = interpreter._patch_lang
interpreter._patch_lang = lambda function: (patched.append(1), patch(function))[1]
catalog.load("vector_add", interpret=True)


@triton.jit
def _twice(x, FAIL: tl.constexpr):
    if FAIL:
        tl.static_assert(False)
    return 2 * x


@triton.jit
def kernel(x_ptr, FAIL: tl.constexpr):
    for i in range(5):
        tl.store(x_ptr + i, _twice(tl.load(x_ptr + i), FAIL))


x, builtin = torch.ones(5), tl.load
for fail in (False, True, False):
    try:
        kernel[(1,)](x, FAIL=fail)
    except Exception as error:
        print(type(error).__name__)
    assert tl.load is builtin
print(x.tolist(), len(patched))
"""


def run(folder, code: str) -> str:
    """Run ``code`` from a file, since the interpreter reads a kernel's source.

    TRITON_INTERPRET is set from the start, since importing Triton already decides it for what Triton itself jits.
    """
    file = folder / "script.py"
    file.write_text(code)
    path = os.pathsep.join([str(ROOT / "workflow"), str(ROOT), *sys.path])
    environment = os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("before", ["", AS_TRITON_36], ids=["installed", "3.6"])
def test_an_interpreted_loop_runs_to_a_bound_known_only_at_launch(tmp_path, before):
    # 0 + 2 + 4 + 6 and 1 + 3 + 5, each with 1000 * (0 + 1 + 2 + 3); nothing stays on tl.tensor after the launch.
    assert run(tmp_path, KERNEL.format(before=before)) == "[6012, 6009] False"


def test_a_triton_that_needs_no_repair_is_left_as_it_is(tmp_path):
    run(tmp_path, "import triton\n" + UNTOUCHED)


def test_the_language_is_patched_once_a_launch_and_as_it_was_after_it_also_after_one_that_failed(tmp_path):
    # Each launch calls a jitted helper, two of three five times: Triton alone would patch 3 + 11 times.
    assert run(tmp_path, CALLS).splitlines() == ["InterpreterError", "[4.0, 4.0, 4.0, 4.0, 4.0] 3"]


def test_no_stage_that_interprets_imports_triton_before_the_kernel_is_loaded(tmp_path):
    # Triton jits its own functions, tl.max among them, when it is imported: too early, and no kernel can call them.
    rooms = "atlas.validation, atlas.benchmarking.measurement, atlas.tuning.tuner, atlas.stages.validate"
    run(tmp_path, f"import sys, {rooms}\nassert 'triton' not in sys.modules")
