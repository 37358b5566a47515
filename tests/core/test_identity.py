"""What makes a kernel's identities change, and what does not; on small kernels, then on the real ones."""

import dis
import functools
import inspect
import json
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from atlas import ROOT, catalog
from atlas.identity import kernel, stage, today
from atlas.identity.code import Code
from atlas.identity.needs import NEEDS, changed, needed, sentence
from identity_kernels import write

PLAIN, WIDE = "forward.plain", "forward.wide"
ALL = {PLAIN, WIDE, "inputs", "sweep", "cases", "references", "costs", "peers", "public"}


@pytest.fixture
def kernels(tmp_path):
    return write(tmp_path)


def edited(kernels: Path, *edits: tuple[str, str, str], of: str = "toy") -> set[str]:
    """Which identities of the toy change by edits, each (file, old, new)."""
    before = today.of_kernel(kernels, of)
    for name, old, new in edits:
        path = kernels / name
        text = path.read_text() if path.exists() else ""
        assert old in text, f"{name} does not say {old!r}"
        path.write_text(text.replace(old, new))
    after = today.of_kernel(kernels, of)
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def test_a_kernels_variants_are_read_without_importing_anything(kernels):
    assert set(today.of_kernel(kernels, "toy")) == ALL


@pytest.mark.parametrize(
    "edit",
    [
        ("toy.py", "FACTOR = 2\n", "# Twice.\nFACTOR = 2  # and no more\n"),
        ("toy.py", '"""One program owns BLOCK elements."""', '"""One program owns BLOCK of them."""'),
        ("toy.py", '"""A toy."""', ""),
        ("toy.py", "FACTOR = 2\n", 'FACTOR = 2\n"""How much."""\n'),
        ("toy.py", "def _default(problem, gpu):\n", 'def _default(problem, gpu):\n    """Where nothing is tuned."""\n'),
        ("toy.py", "def _default(problem, gpu):", "\n\n\ndef _default(\n    problem,\n    gpu,\n):"),
        ("toy.py", "def _default(problem, gpu):", "def _default(problem: 'Case', gpu: 'GPU') -> dict:"),
        ("toy.py", "def toy(x):", "def toy(x: 'torch.Tensor') -> 'torch.Tensor':"),  # its decorator reads none
        ("toy.py", 'summary="as it is"', 'summary="as it stands"'),
        ("toy.py", 'summary="y = 2 x"', 'summary="y = x + x"'),
        ("_toy_parts.py", "return 3", "return 4"),
    ],
    ids=[
        "comment",
        "docstring",
        "no docstring",
        "a value's docstring",
        "a docstring where there was none",
        "formatting",
        "annotations",
        "annotations of the public function",
        "a variant's summary",
        "a kernel's summary",
        "a function nobody reaches",
    ],
)
def test_what_does_not_run_changes_nothing(kernels, edit):
    assert edited(kernels, edit) == set()


def test_the_public_function_is_the_one_that_is_marked_or_named(kernels):
    before = today.of_kernel(kernels, "toy")["public"]
    text = (kernels / "toy.py").read_text().replace("@DECLARATION.public\n", "")
    named = text.replace('    summary="y = 2 x",\n', '    summary="y = 2 x",\n    function=toy,\n')
    (kernels / "toy.py").write_text(named)
    assert today.of_kernel(kernels, "toy")["public"] == before
    (kernels / "toy.py").write_text(text + "\n\n@DECLARATION.public\ndef other(x):\n    return 3 * x\n")
    assert today.of_kernel(kernels, "toy")["public"] != before


def test_a_function_moved_to_another_file_changes_nothing(kernels):
    (kernels / "elsewhere.py").write_text(
        "import math\n\n\ndef warps_for(block):\n    return max(1, math.log2(block) // 3)\n"
    )
    moved = ("_toy_parts.py", "def warps_for(block):\n    return max(1, math.log2(block) // 3)\n",
             "from kernels.elsewhere import warps_for\n")  # fmt: skip
    assert edited(kernels, moved) == set()


def test_a_file_moved_and_its_functions_renamed_changes_nothing(kernels):
    before = today.of_kernel(kernels, "toy")
    (kernels / "common").mkdir()
    text = (kernels / "_toy_parts.py").read_text().replace("scaled", "doubled")
    (kernels / "common" / "scaling.py").write_text(text)
    (kernels / "_toy_parts.py").unlink()
    main = (kernels / "toy.py").read_text()
    main = main.replace("from kernels._toy_parts import scaled, threads", "import kernels.common.scaling as parts")
    (kernels / "toy.py").write_text(main.replace("scaled(", "parts.doubled(").replace("threads(", "parts.threads("))
    assert today.of_kernel(kernels, "toy") == before


def test_definitions_in_another_order_change_nothing(kernels):
    text = (kernels / "toy.py").read_text()
    space = '_SPACE = {"BLOCK": (512, 1024)}\n'
    assert edited(kernels, ("toy.py", space, ""), ("toy.py", "FACTOR = 2\n", f"{space}FACTOR = 2\n")) == set()
    assert (kernels / "toy.py").read_text() != text


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (("toy.py", "mask=offs < n)), mask", "mask=offs < n)) + 0.0, mask"), {PLAIN}),
        (("_toy_parts.py", "return x * 2.0", "return x + x"), {PLAIN}),
        (("_toy_parts.py", "// 3)", "// 4)"), {PLAIN}),
        (("toy.py", 'BLOCK=config["BLOCK"])\n', 'BLOCK=config["BLOCK"], num_stages=1)\n'), {WIDE}),
        (("toy.py", 'return {"BLOCK": 1024}', 'return {"BLOCK": 512}'), {PLAIN, WIDE}),
        (("toy.py", "(512, 1024)", "(512, 1024, 2048)"), {PLAIN, WIDE}),
        (("toy.py", "FACTOR = 2", "FACTOR = 3"), {WIDE, "references", "peers"}),
        (("toy.py", "torch.randn(", "torch.rand("), {"inputs"}),
        (("toy.py", '"one element", n=1),', '"one element", n=1), case("fp32", "none", n=0),'), {"cases"}),
        (("toy.py", '(case("fp32", n=4096),)', '(case("fp32", n=8192),)'), {"sweep"}),
        (("toy.py", 'peers={"torch"', 'peers={"other": eager(toy), "torch"'), {"peers"}),
        (("toy.py", "4 * c", "8 * c"), {"costs"}),
        (("toy.py", "    return variant.launch(x,", "    return variant.launch(+x,"), {"public"}),
        (("toy.py", 'outputs=("y",)', 'outputs=("y",), reduction=lambda c: c["n"]'), {"references"}),
        (("toy.py", 'name="wide"', 'name="wider"'), {WIDE, "forward.wider"}),
    ],
    ids=[
        "a device line",
        "a device function in another file",
        "a helper of a helper",
        "a launcher",
        "default",
        "space",
        "a constant of one kernel and the reference",
        "inputs",
        "an edge case",
        "the sweep",
        "a peer",
        "bytes",
        "the public function",
        "a tolerance",
        "a variant's name",
    ],
)
def test_what_runs_changes_its_own_identity_and_no_other(kernels, edit, expected):
    # The public function launches every variant, but a validation depends on these by their own identities.
    assert edited(kernels, edit) == expected


def test_a_kernel_that_calls_another_changes_with_its_variants_and_not_with_its_cases_or_peers(kernels):
    assert edited(kernels, ("toy.py", '"one element", n=1),', '"one", n=1), case("fp32", n=0),'), of="user") == set()
    assert edited(kernels, ("toy.py", "peers={", 'peers={"other": None, '), of="user") == set()
    assert edited(kernels, ("_toy_parts.py", "return x * 2.0", "return x + x"), of="user") == {"forward.one"}


def test_what_cannot_be_followed_is_taken_whole(kernels):
    """A module passed about as a value: any of its functions may be meant."""
    by_name = ("toy.py", "scaled(tl.load", 'getattr(kernels._toy_parts, "scaled")(tl.load')
    edited(kernels, by_name, ("toy.py", "import torch\n", "import kernels._toy_parts\nimport torch\n"))
    assert PLAIN in edited(kernels, ("_toy_parts.py", "return 3", "return 4"))


def test_a_declaration_that_cannot_be_read_is_one_identity_with_all_of_its_file(kernels):
    edited(kernels, ("toy.py", "DECLARATION = Declaration(", "DECLARATION = (lambda **given: Declaration(**given))("))
    assert set(today.of_kernel(kernels, "toy")) == {"*"}
    assert edited(kernels, ("toy.py", "(512, 1024)", "(512,)")) == {"*"}
    assert kernel.find({"*": "a"}, PLAIN) == "a"


def test_variants_that_cannot_be_read_share_the_identity_of_their_pass(kernels):
    edited(
        kernels,
        ("toy.py", "variants=(", "variants=tuple(v for v in ("),
        ("toy.py", "),\n        peers", ")),\n        peers"),
    )
    assert "forward.*" in today.of_kernel(kernels, "toy")
    assert "forward.*" in edited(kernels, ("_toy_parts.py", "// 3)", "// 4)"))


BUILT = '''
def _variants(launchers, wide="wide"):
    """Both."""
    def default(problem, gpu):
        return _default(problem, gpu)

    return (_named("plain", launchers, _SPACE, default), *_more(wide, launchers))


def _more(name, launch, *, space=None):
    return [_named(name, launch, _SPACE, _default)]


def _named(name, launch, space, default):
    return Variant(name=name, launch=launch, space=space, default=default)


DECLARATION = Declaration('''


def test_variants_that_functions_build_are_told_apart(kernels):
    text = (kernels / "toy.py").read_text().replace("\nDECLARATION = Declaration(", BUILT)
    first = text.index("        variants=(\n", text.index("DECLARATION ="))
    last = text.index("        peers=", first)
    (kernels / "toy.py").write_text(text[:first] + "        variants=_variants(_launch_plain),\n" + text[last:])
    assert set(today.of_kernel(kernels, "toy")) == ALL
    assert edited(kernels, ("toy.py", "return _default(problem, gpu)", "return {}")) == {PLAIN}
    assert edited(kernels, ("toy.py", "_launch_plain),\n", "_launch_wide),\n")) >= {PLAIN, WIDE}


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("table = {}\ntable['a'] = f\ndef f(): return 1\n", ("return 1", "return 2")),
        ("table = {}\ntable.update(a=1)\n", ("a=1", "a=2")),
        ("try:\n    from kernels.there import table\nexcept ImportError:\n    table = 1\n", ("= 1", "= 2")),
        ("from kernels.there import *\n", ("import *", "import *\ntable = 2")),
        ("if True:\n    table = 1\nelse:\n    table = 2\n", ("= 2", "= 3")),
        ("a, table = 1, 2\n", ("1, 2", "1, 3")),
        ("def table(x=1): return x\n", ("x=1", "x=2")),
        ("class table:\n    x = 1\n    def f(self): return self.x\n", ("x = 1", "x = 2")),
        ("table = [n for n in (1, 2)]\n", ("(1, 2)", "(1, 3)")),
        ("def f(g):\n    return g\n@f\ndef table(): pass\n", ("return g", "return 1")),
        ("def table():\n    from kernels.there import one as n\n    return n\n", ("one as", "two as")),
        ("n = 1\ndef table():\n    return [n for n in range(n)]\n", ("n = 1", "n = 2")),
        ("n = 1\ndef table():\n    global n\n    n += 1\n    return n\n", ("n = 1", "n = 2")),
        ("n = 1\nclass table:\n    n = n\n", ("n = 1", "n = 2")),
        ("table = 'kernels.there'\n", ("'kernels.there'", "'kernels.other'")),
    ],
    ids=[
        "an item set",
        "an effect on it",
        "a fallback",
        "a star import",
        "a condition",
        "a pair",
        "an argument's default",
        "a class",
        "a comprehension",
        "a decorator",
        "a late import",
        "a name shadowed in a comprehension",
        "a global",
        "a class's own name",
        "a module by name",
    ],
)
def test_every_way_to_define_a_name_counts(tmp_path, text, edit):
    for name, content in {
        "there.py": "table = 1\none = 1\ntwo = 2\n",
        "other.py": "table = 5\n",
        "__init__.py": "",
    }.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "main.py").write_text(text)
    before = Code({"kernels": tmp_path}).digest([("", ("kernels.main", "*"))])
    (tmp_path / "main.py").write_text(text.replace(*edit))
    assert Code({"kernels": tmp_path}).digest([("", ("kernels.main", "*"))]) != before


def test_a_local_name_is_not_taken_for_the_function_of_that_name(tmp_path):
    (tmp_path / "main.py").write_text("def rows(): return 1\ndef f(rows):\n    return [rows for x in rows]\n")
    assert Code({"kernels": tmp_path}).reached([("", ("kernels.main", "f"))]) == {("kernels.main", "f")}


def test_a_name_that_a_package_finds_when_asked_is_that_of_the_part_which_defines_it(tmp_path):
    (tmp_path / "__init__.py").write_text("def __getattr__(name): ...\n")
    (tmp_path / "part.py").write_text("def product(): return 1\n")
    (tmp_path / "main.py").write_text("from kernels import product\ndef f(): return product()\n")
    assert ("kernels.part", "product") in Code({"kernels": tmp_path}).reached([("", ("kernels.main", "f"))])


def test_a_name_that_a_package_finds_when_asked_is_that_of_a_part_which_is_a_package_itself(tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "__init__.py").write_text("def __getattr__(name): ...\n")
    (tmp_path / "part" / "__init__.py").write_text("from .inner import product\n")
    (tmp_path / "part" / "inner.py").write_text("def product(): return 1\n")
    (tmp_path / "main.py").write_text("from kernels import product\ndef f(): return product()\n")
    assert ("kernels.part.inner", "product") in Code({"kernels": tmp_path}).reached([("", ("kernels.main", "f"))])


def test_a_file_that_becomes_a_package_keeps_its_identities(kernels):
    """Part of it in a module beside the rest, as a family is that outgrew a file."""
    text, before = (kernels / "toy.py").read_text(), today.of_kernel(kernels, "toy")
    first = text.index("@triton.jit\ndef _wide_kernel")
    moved = text[first : text.index("\n\n\n", first)]
    rest = text.replace(moved, "").replace("FACTOR = 2\n", "from .wide import FACTOR, _wide_kernel\n")
    (kernels / "toy.py").unlink()
    (kernels / "toy").mkdir()
    (kernels / "toy" / "wide.py").write_text(f"import triton\nimport triton.language as tl\nFACTOR = 2\n{moved}\n")
    for name, new in {"declaration": rest, "wide": (kernels / "toy" / "wide.py").read_text()}.items():
        (kernels / "toy" / f"{name}.py").write_text(new.replace("_wide_kernel", "wide_kernel"))
    (kernels / "toy" / "__init__.py").write_text("from .declaration import DECLARATION, toy\n")
    assert today.of_kernel(kernels, "toy") == before


def test_what_was_found_is_kept_for_the_next_process_as_long_as_no_file_changes(kernels, tmp_path, monkeypatch):
    monkeypatch.setattr(today, "KEPT", tmp_path / "kept" / "identities.json")
    monkeypatch.setattr(today, "KERNELS", kernels)
    (tmp_path / "kept").mkdir()
    first = today.of_kernel(kernels, "toy")
    monkeypatch.setattr(today, "_sources", {})  # as another process begins
    monkeypatch.setattr(kernel, "identities", lambda *_: {"read": "again"})
    assert today.of_kernel(kernels, "toy") == first
    (kernels / "toy.py").write_text((kernels / "toy.py").read_text() + "\n")
    assert today.of_kernel(kernels, "toy") == {"read": "again"}


# --- What documents depend on ----------------------------------------------------------------------------------------


def test_an_edge_case_is_due_for_validation_alone_and_a_peer_for_the_benchmark(kernels):
    before = today.of_kernel(kernels, "toy")
    stated = {name: needed(name, before) for name in NEEDS}

    def due():
        now = today.of_kernel(kernels, "toy")
        return {name for name in NEEDS if changed(name, stated[name], now)}

    assert due() == set()
    edited(kernels, ("toy.py", '"one element", n=1),', '"one element", n=1), case("fp32", n=0),'))
    assert due() == {"validate"}
    edited(kernels, ("toy.py", "peers={", 'peers={"other": None, '))
    assert due() == {"validate", "benchmark", "beyond", "profile"}
    edited(kernels, ("_toy_parts.py", "return x * 2.0", "return x + x"))
    assert due() == set(NEEDS)


def test_a_change_is_told_in_words():
    then, now = (
        {"forward.old": "1", "backward.team": "2", "cases": "3"},
        {"backward.team": "4", "cases": "5", "forward.new": "6"},
    )
    names = changed("validate", then, now)
    assert sentence(names, then, now) == (
        "backward `team` changed, forward `new` is new, forward `old` is gone, the cases of validation changed"
    )


# --- The real kernels ------------------------------------------------------------------------------------------------


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
sys.setprofile(watch)
cli.main(sys.argv[1:])
sys.setprofile(None)
print(json.dumps(sorted(called)))
"""


@pytest.mark.parametrize(
    "words",
    [
        ("build", "vector_add", "--gpu", "t4", "--sample", "1"),
        ("validate", "vector_add", "--gpu", "cpu", "--seeds", "1"),
        ("autotune", "vector_add", "--gpu", "cpu"),
        ("benchmark", "vector_add", "--gpu", "cpu"),
        ("tables",),
    ],
    ids=lambda words: words[0],
)
def test_what_a_stage_calls_is_in_its_identity(results, words):
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *words, "--results", str(results)], capture_output=True, text=True, check=False
    )
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
