"""The identities of the real kernels and stages: what runs is in them, each has its own, and finding them is quick."""

import dis
import functools
import inspect
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import preloaded
import pytest
from atlas import ROOT, catalog
from atlas.identity import kernel, stage, today
from atlas.identity.code import Code
from atlas.identity.needs import changed, needed
from identity_kernels import edited


@functools.cache
def source():
    """The real kernels' code, read once for all tests that leave it as it is."""
    return today.code_of(catalog.KERNELS)


@pytest.fixture
def copied(tmp_path):
    """A copy of the real kernels, to edit."""
    return Path(shutil.copytree(catalog.KERNELS, tmp_path / "kernels", ignore=shutil.ignore_patterns("tuned", "nn")))


def test_an_edit_of_softmaxs_online_leaves_one_pass_as_it_is(copied):
    line = "    row_max = tl.max(m_i, axis=0)\n"
    found = edited(copied, ("softmax/forward.py", line, "    row_max = tl.max(m_i, axis=0) + 0.0\n"), of="softmax")
    assert found == {"forward.online"}


def test_helpers_of_the_project_count_where_they_are_reached():
    """They were left out as long as files were digested."""
    code = source()
    softmax = kernel.reached(code, "softmax")["forward.one_pass"]
    assert ("atlas.declaration.rows", "rows_obstacle") in softmax
    matmul = kernel.reached(code, "matmul")["forward.descriptor"]
    assert {("atlas.operators.rounding", "_TFLOAT32"), ("atlas.declaration.products", "uses_tensor_cores")} <= matmul
    assert not any(name == "choose" for _, name in softmax | matmul), "what chooses a config is not what runs it"


def test_how_configs_are_weighed_decides_how_fast_a_call_is_and_not_whether_it_is_right(tmp_path):
    """Configs come from files that no identity knows, and each was certified where it was tuned."""
    atlas = Path(shutil.copytree(today.ATLAS, tmp_path / "atlas"))
    likeness = atlas / "declaration" / "likeness.py"
    text = likeness.read_text()
    likeness.write_text(text.replace("SCALE = 0.3\n", "SCALE = 0.4\n"))
    assert likeness.read_text() != text
    before = kernel.identities(source(), "softmax")
    after = kernel.identities(today.code_of(catalog.KERNELS, atlas), "softmax")
    assert changed("validate", needed("validate", before), after) == []
    assert changed("beyond", needed("beyond", before), after) == ["choice"]
    assert {name for name in before if before[name] != after[name]} == {"choice"}


def test_every_variant_of_every_kernel_has_an_identity_of_its_own():
    for name in catalog.names():
        identities, declaration = catalog.identities(name), catalog.load(name)
        declared = {kernel.name_of(d, v.name) for d, work in declaration.passes.items() for v in work.variants}
        assert declared == {one for one in identities if one not in kernel.PARTS}, name
        assert set(kernel.PARTS) <= set(identities), name


OF_ANNOTATIONS = {("atlas.declaration.cases", "Case"), ("atlas.declaration.hardware", "GPU")}
"""Nested functions look them up for their annotations, which nothing reads."""


def _running(value, found, seen):
    """The project's functions that a value can call, by what Python itself would look up: globals, cells, partials."""
    from triton.runtime.jit import JITFunction

    if isinstance(value, JITFunction):
        value = value.fn
    if isinstance(value, functools.partial):
        for one in (value.func, *value.args, *value.keywords.values()):
            _running(one, found, seen)
        return
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, tuple | list | frozenset):
        for one in value:
            _running(one, found, seen)
        return
    if isinstance(value, dict):
        for one in value.values():
            _running(one, found, seen)
        return
    if isinstance(value, type) and value.__module__.startswith(("atlas.", "kernels.")):
        found.add((value.__module__, value.__qualname__.split(".")[0]))
        return  # a class counts whole
    if not isinstance(value, types.FunctionType) or value in seen:
        return
    if not value.__module__.startswith(("atlas.", "kernels.")):
        return
    seen.add(value)
    if "<locals>" not in value.__qualname__:  # else what made it ran when its file was imported
        found.add((value.__module__, value.__qualname__.split(".")[0]))
    for cell in value.__closure__ or ():
        _running(cell.cell_contents, found, seen)
    for one in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
        _running(one, found, seen)
    for code in _codes(value.__code__):
        at_hand: Any = None
        for one in dis.get_instructions(code):
            if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                at_hand = value.__globals__.get(one.argval)
            elif one.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(at_hand, types.ModuleType):
                at_hand = getattr(at_hand, one.argval.rpartition(" ")[2], None)  # `hopper.launch`
            else:
                continue
            _running(at_hand, found, seen)


def _codes(code):
    yield code
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _codes(constant)


@pytest.mark.parametrize("name", catalog.names())
def test_what_the_running_program_reaches_is_in_the_identity(name):
    reached = kernel.reached(source(), name)
    for direction, work in catalog.load(name).passes.items():
        for variant in work.variants:
            found: set = set()
            for field in (variant.launch, variant.default, variant.fits, variant.handles, variant.space):
                _running(field, found, set())
            own = {one for one in found if one[1] != "<lambda>"} - OF_ANNOTATIONS
            assert own, "the launcher at least"
            missing = own - reached[kernel.name_of(direction, variant.name)]
            assert not missing, f"{direction} {variant.name}"


@pytest.mark.parametrize("name", catalog.names())
def test_what_triton_finds_a_kernel_to_depend_on_is_in_the_identity(name):
    """Its own finder of dependencies lists the functions and globals that enter a kernel's cache key."""
    from triton.runtime.jit import JITFunction

    reached = kernel.reached(source(), name)
    for direction, work in catalog.load(name).passes.items():
        for variant in work.variants:
            found: set = set()
            _running(variant.launch, found, set())
            identity = reached[kernel.name_of(direction, variant.name)]
            for module, own in found:
                function = vars(sys.modules[module]).get(own)
                if not isinstance(function, JITFunction):
                    continue
                assert function.cache_key
                for (used, _), (_, namespace) in function.used_global_vals.items():
                    origin = namespace["__name__"]
                    if origin.startswith(("atlas.", "kernels.")):
                        assert (origin, used) in identity or _imported(origin, used, identity), (module, own, used)


def _imported(module, name, identity):
    """A global that the file has from another: it counts as the other's."""
    origins = [one for one in identity if one[1] == name and one[0] != module]
    return bool(origins) or source().resolve(module, name)[0] in ("outside", "module")


def test_all_identities_are_found_without_torch_and_no_file_is_read_twice():
    """The workflow asks for them while it is parsed: reading a file as a tree is what takes the time."""
    script = (
        "import ast, sys; from atlas.identity import today; from pathlib import Path\n"
        "from atlas import catalog; kernels = Path(sys.argv[1]); parsed, parse = [], ast.parse\n"
        "ast.parse = lambda text: parsed.append(text) or parse(text)\n"
        "code = today.code_of(kernels); from atlas.identity import kernel\n"
        "found = [kernel.identities(code, name) for name in catalog.names()]\n"
        "assert len(found) > 20 and not {'torch', 'triton'} & sys.modules.keys()\n"
        "print(len(parsed), len({*parsed}), sum(text.count(b'\\n') for text in parsed))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(catalog.KERNELS)], capture_output=True, text=True, check=True
    )
    files, different, lines = map(int, done.stdout.split())
    assert 100 < files == different and lines > 10_000


# --- Stages ----------------------------------------------------------------------------------------------------------


def test_a_stages_identity_is_of_the_code_it_reaches():
    def modules(name):
        code = Code({"atlas": ROOT / "workflow" / "atlas"}, stage.apart(name))
        return {module for module, _ in stage.reached(code, name)}

    autotune = modules("autotune")
    assert {
        "atlas.tuning.search",
        "atlas.timing.samplers",
        "atlas.validation.tolerances",
        "atlas.workers.process",
    } <= autotune
    assert {"atlas.tuning.checking"} <= autotune, "imported by a name put together of __package__"
    assert not {
        module for module in autotune if module.startswith(("proofs", "atlas.tables", "atlas.results.documents"))
    }
    assert "atlas.timing.samplers" not in modules("validate")
    assert "atlas.profiling.launches" in modules("profile"), "run by its name"


WATCHED = """
import inspect, json, sys
from atlas import cli
called = set()
def watch(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and "/workflow/atlas/" in code.co_filename:
        name = code.co_qualname.split(".")[0]
        if not name.startswith("<"):
            called.add((frame.f_globals["__name__"], name))
sys.settrace(watch)  # which is told of no return, as a profile would be, and of no call of C
cli.main(words)
sys.settrace(None)
print(json.dumps(sorted(called)))
"""


@pytest.mark.parametrize(
    "words",
    [
        ("build", "vector_add", "--gpu", "t4", "--sample", "1"),
        ("validate", "vector_add", "--gpu", "cpu", "--seeds", "1"),
        pytest.param(("autotune", "vector_add", "--gpu", "cpu"), marks=pytest.mark.slow),
        ("benchmark", "vector_add", "--gpu", "cpu"),
        pytest.param(("tables",), marks=pytest.mark.slow),
    ],
    ids=lambda words: words[0],
)
def test_what_a_stage_calls_is_in_its_identity(results, words):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'workflow'}{os.pathsep}{ROOT}"}
    done = preloaded.run(f"words = {[*words, '--results', str(results)]}\n{WATCHED}", environment, ROOT)
    assert done.returncode == 0, done.stderr
    called = {tuple(one) for one in json.loads(done.stdout.splitlines()[-1])}
    code = Code({"atlas": ROOT / "workflow" / "atlas"}, stage.apart(words[0]))
    # What a kernel's file reaches is in the kernel's identities.
    own = stage.reached(code, words[0], "cpu" in words).union(*kernel.reached(source(), "vector_add").values())
    assert (f"atlas.stages.{words[0]}", "run") in called
    assert not {one for one in called - own if not code.is_apart(one[0])}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Documents of one kernel, each stage's made by the test of the stage before."""
    return tmp_path_factory.mktemp("watched") / "results"
