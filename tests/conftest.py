"""Two runs, not one: ``@triton.jit`` reads TRITON_INTERPRET when a kernel file is imported, once for the process.

``pytest`` collects what compiles; ``pytest tests/kernels tests/validation tests/calls`` collects what is interpreted.
``make test`` runs both.  A third, ``pytest -m gpu``, is for a GPU host: it collects the folders that have such tests
and no others, whose imports may be missing there, and interprets nothing.
"""

import os
import sys
import time
from pathlib import Path

import pytest

INTERPRETED = ("kernels", "validation", "calls")
ON_GPU = ("gpu", "calls", "compilation")
"""Folders with tests marked gpu."""
LONGEST = (
    "compilation/test_cross_compilation.py",
    "compilation/test_hopper.py",
    "workflow/test_run.py",
    "workflow/test_plan.py",
    "core/test_library.py",
    "core/test_identity_reached.py",
    "benchmarking/test_measurement.py",
    "views/test_figures.py",
    "views/test_failed_rows.py",
    "views/test_hostile_documents.py",
    "workload/test_watch.py",
    "tracking/test_track.py",
    "workflow/test_several_gpus.py",
    "core/test_identity.py",
    "workflow/test_wrong_kernel.py",
    "outside/test_outside.py",
    "workflow/test_bad_input.py",
    "tuning/test_worker.py",
    "tuning/test_stage.py",
    "kernels/test_layer_norm.py",
    "validation/test_stage.py",
    "validation/test_mutants.py",
    "kernels/test_attention_masked.py",
    "kernels/test_transformer.py",
)
"""Files of half a minute and more, the longest first: a worker that came to one last would leave the others idle."""

_HERE = Path(__file__).parent


def _interpreted(path: Path) -> bool:
    return any(_HERE / name in (path, *path.parents) for name in INTERPRETED)


def _is_for_a_gpu(config) -> bool:
    return config.option.markexpr == "gpu"


def _whole_run_is_interpreted(config) -> bool:
    if _is_for_a_gpu(config):
        return False
    paths = [Path(argument.partition("::")[0]).absolute() for argument in config.args]
    return bool(paths) and all(_interpreted(path) for path in paths)


def pytest_configure(config):
    """Choose before any kernel is imported; workers inherit the choice."""
    if not _is_for_a_gpu(config):
        # The processes that share the cores: of small tensors, threads of NumPy and torch cost as much as the work.
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(name, "1")
    if _whole_run_is_interpreted(config):
        os.environ["TRITON_INTERPRET"] = "1"
        from atlas.host import interpreter

        interpreter.patch()
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    # Calls go over to the extension once it is built: not in the middle of a test.
    os.environ.setdefault("KERNEL_ATLAS_NATIVE", "wait")
    # Without it cuBLAS refuses what a test's own torch asks of it in deterministic mode.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_ignore_collect(collection_path, config):
    """Leave the other run's folders to the other run."""
    if collection_path.parent == _HERE and collection_path.is_dir():
        if _is_for_a_gpu(config):
            return collection_path.name not in ON_GPU or None
        return _interpreted(collection_path) != _whole_run_is_interpreted(config) or None
    return None


def pytest_collection_modifyitems(config, items):
    """The longest files first where workers share them; a process alone takes them as they were named."""
    if not hasattr(config, "workerinput"):
        return
    rank = {_HERE / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def pytest_report_header(config):
    """Say which of the runs this is."""
    if _is_for_a_gpu(config):
        return "kernels run on a GPU, one test at a time"
    if _whole_run_is_interpreted(config):
        return "kernels run in Triton's interpreter"
    return f"interpreted tests are a run of their own: pytest {' '.join(f'tests/{name}' for name in INTERPRETED)}"


_lost = ""
"""The test that cost this process its GPU: no later one can tell anything."""


def pytest_runtest_setup(item):
    """Skip without a GPU; fail at once where an illegal access has made it useless to this process."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("this host shows no GPU")
    if _lost:
        pytest.fail(f"not tried: the GPU answers this process no more since {_lost}", pytrace=False)


def pytest_runtest_teardown(item):
    """Find out which test it was that lost the GPU."""
    global _lost
    torch = sys.modules.get("torch")
    if item.get_closest_marker("gpu") is None or _lost or torch is None or not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        _lost = item.nodeid
        pytest.fail(f"the GPU answers this process no more: {error}", pytrace=False)


_WHOLE = 100
"""Selected tests from which on compiling what they share on several cores is worth starting processes for it."""


def pytest_collection_finish(session):
    """Before a whole run on a GPU: compile in parallel, since the tests themselves run one at a time."""
    if not _is_for_a_gpu(session.config) or session.config.option.collectonly or len(session.items) < _WHOLE:
        return
    import torch

    if torch.cuda.device_count():  # which opens no context
        from calls import ahead

        began = time.perf_counter()
        ahead.compile_all()
        print(f"\ncompiled ahead in {time.perf_counter() - began:.0f} s")


@pytest.fixture(autouse=True)
def chosen_mode():
    """What a test that loads a kernel for the interpreter leaves behind would keep the next from compiling."""
    before = os.environ.get("TRITON_INTERPRET")
    yield
    if before is None:
        os.environ.pop("TRITON_INTERPRET", None)


@pytest.fixture
def fake_ncu(tmp_path, monkeypatch):
    """Puts a script named ncu on PATH; the body sees ``log`` and ``words``, the profiled command.

    ``query`` is what it lists as the GPU's metrics.
    """

    def put(body, query=""):
        script = tmp_path / "bin" / "ncu"
        script.parent.mkdir(exist_ok=True)
        script.write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            f"if '--query-metrics' in sys.argv:\n    print({query!r})\n    sys.exit()\n"
            "at = sys.argv.index('--log-file') + 1\n"
            "log, words = sys.argv[at], sys.argv[at + 1:]\n" + body
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")

    return put
