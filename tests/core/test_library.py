"""kernels/ as a library, and the rules of the house that keep it one."""

import ast
import json
import re
from pathlib import Path

import preloaded
import pytest
from atlas import ROOT, catalog
from atlas.stages import kernels

FILES = [(name, path) for name in catalog.names() for path in catalog.files(name)]
"""Every kernel with each of its files."""


def run(code: str, first: Path = ROOT) -> str:
    """What the code prints, in a process that looks for ``kernels`` in the folder ``first`` before the project."""
    path = f"{first}:{ROOT / 'workflow'}:{ROOT}"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "TRITON_INTERPRET": "1"}
    done = preloaded.run(code, environment, first)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "order",
    [
        "from kernels import softmax; assert callable(softmax)",
        "import kernels.softmax; from kernels import softmax; assert callable(softmax)",
        "from kernels.softmax import DECLARATION; import kernels; assert kernels.softmax is DECLARATION.function",
    ],
)
def test_the_public_functions_are_imported_from_the_package_whatever_was_imported_before(order):
    run(order)


def test_importing_the_package_imports_no_kernel_and_no_stage():
    out = run("import sys, kernels, kernels.nn; print([m for m in sys.modules if m.startswith(('kernels.', 'atlas'))])")
    assert out.strip() == "['kernels.nn']"


def test_importing_a_kernel_loads_no_compiler_of_torch():
    imports = "\n".join(f"import kernels.{name}" for name in catalog.names())
    out = run(f"import sys\n{imports}\nprint('torch._dynamo' in sys.modules)")  # some 2 s, in every process
    assert out.strip() == "False"


FUNCTIONS = {
    "circle": "shapes", "square": "shapes", "cube": "cube", "broken": "broken", "shards": "broken",
    "family": "family", "second": "family",
}  # fmt: skip


@pytest.fixture
def library(tmp_path):
    """A folder with a package ``kernels``: a file of two functions, one of one, one broken, a package, folders beside.

    Its ``__init__.py`` is the project's, with this table of functions.
    """
    package = tmp_path / "kernels"
    text, count = re.subn(
        r"(?s)^FUNCTIONS = \{.*?^\}",
        f"FUNCTIONS = {FUNCTIONS}",
        (ROOT / "kernels" / "__init__.py").read_text(),
        flags=re.M,
    )
    assert count == 1
    files = {
        "__init__": text,
        "shapes": "__all__ = [\n    'circle',\n    'square',\n]\ncircle, square, hidden = str, int, float\n",
        "cube": "cube = abs\n",
        "broken": "__all__ = ['broken', 'shards']\nraise RuntimeError('does not import')\n",
        "family/__init__": "from .forward import family\nfrom .backward import second\n",
        "family/forward": "family = abs\n",
        "family/backward": "second = int\n",
        "inner/__init__": "from kernels import cube as inner\n",
    }
    for name, text in files.items():
        path = package / f"{name}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    return tmp_path


def test_functions_come_from_files_and_packages_alike(library):
    out = run("import kernels; print(*kernels.__all__)", library)
    assert out.split() == ["broken", "circle", "cube", "family", "second", "shards", "square"]
    run("from kernels import square, cube, circle; assert (circle, square, cube) == (str, int, abs)", library)
    run("import kernels.shapes, kernels; assert kernels.square is int and kernels.shapes.hidden is float", library)
    run("import kernels; assert kernels.shapes.square is kernels.square is int", library)


@pytest.mark.parametrize(
    "order",
    [
        "from kernels import family, second; assert (family, second) == (abs, int)",
        "import kernels.family; import kernels; assert kernels.family is abs",
        "from kernels.family import backward; from kernels import family; assert backward.second is int",
        "from kernels.family.backward import second; import kernels; assert kernels.family is abs",
    ],
)
def test_the_function_of_a_package_s_name_wins_whatever_of_the_package_was_imported_before(library, order):
    run(order, library)


def test_a_file_that_does_not_import_harms_no_other(library):
    run("from kernels import circle, cube", library)
    run("import kernels\ntry: kernels.shards\nexcept RuntimeError: pass\nelse: raise AssertionError", library)


def test_asking_for_a_function_imports_no_other_family(library):
    run(
        "import sys; from kernels import second; assert not {'kernels.cube', 'kernels.shapes'} & {*sys.modules}",
        library,
    )


def test_a_package_beside_the_kernels_stays_a_package_and_offers_no_function(library):
    run("import kernels; assert kernels.inner.inner is abs and 'inner' not in kernels.__all__", library)
    run("import kernels.inner, kernels; assert kernels.inner.inner is abs", library)
    run("from kernels import inner; assert inner.inner is abs", library)


def test_the_table_of_functions_has_every_function_of_every_kernel_and_no_other():
    out = run("import json, kernels; print(json.dumps(kernels.FUNCTIONS))")
    offered = [(function, name) for name in catalog.names() for function in catalog.public(name)]
    assert len(dict(offered)) == len(offered), "no function is offered by two kernels"
    assert json.loads(out) == dict(offered), "kernels/__init__.py: FUNCTIONS"


def test_an_editor_is_shown_the_same_functions_as_python():
    tree = ast.parse((ROOT / "kernels" / "__init__.py").read_text())
    (shown,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(shown.test) == "TYPE_CHECKING"
    imports = [node for node in shown.body if isinstance(node, ast.ImportFrom)]
    offered = {(alias.name, node.module) for node in imports for alias in node.names}
    assert offered == {(function, name) for name in catalog.names() for function in catalog.public(name)}


def test_every_module_of_kernels_nn_is_found_and_calls_a_kernel_of_the_library():
    out = run(
        "import kernels, kernels.nn, torch\n"
        "for name in kernels.nn.__all__:\n"
        "    found = getattr(kernels.nn, name)\n"
        "    assert issubclass(found, torch.nn.Module) and found.__name__ == name and found.__doc__, name\n"
        "try: kernels.nn.Nothing\n"
        "except AttributeError as e: print(e)"
    )
    assert "'Nothing'" in out and "LayerNorm" in out


def test_an_unknown_kernel_is_named_with_those_there_are():
    out = run("import kernels\ntry: kernels.nothing\nexcept AttributeError as e: print(e)")
    assert "'nothing'" in out and "softmax" in out


def _file_id(value) -> str:
    return value.stem if isinstance(value, Path) else value


@pytest.mark.parametrize(("name", "path"), FILES, ids=_file_id)
def test_a_kernel_s_file_imports_torch_triton_and_the_leaves_alone(name, path):
    """Or another kernel, what of it is used then being part of its identity; files of its own family relatively."""
    standard = {"math", "dataclasses", "functools", "threading", "itertools", "typing", "__future__", "collections"}
    allowed = {"torch", "triton", "liger_kernel", "atlas.declaration", "atlas.operators"} | standard
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level == 1 and path.parent.name == name, f"line {node.lineno}: relative beyond the family"
            continue
        modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            where = f"line {node.lineno} imports {module}"
            assert module.split(".")[:2] != ["kernels", name], (
                f"{where}: a copy of the family would import the original"
            )
            other = module.startswith("kernels.")
            assert other or any(module == a or module.startswith(f"{a}.") for a in allowed), where


def _jitted(tree: ast.Module) -> list[ast.FunctionDef]:
    return [
        n
        for n in tree.body
        if isinstance(n, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in n.decorator_list)
    ]


@pytest.mark.parametrize("name", catalog.names())
def test_a_kernel_has_device_code_or_is_made_of_another_s(name):
    texts = [path.read_text() for path in catalog.files(name)]
    assert any(_jitted(ast.parse(text)) or "from kernels." in text for text in texts)


@pytest.mark.parametrize(
    "path",
    [*(path for _, path in FILES), *sorted((ROOT / "kernels" / "common").glob("*.py"))],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_a_triton_kernel_is_at_most_a_hundred_lines_and_says_what_a_program_owns(path):
    for kernel in _jitted(ast.parse(path.read_text())):
        assert kernel.end_lineno - kernel.lineno < 100, kernel.name
        # A function that asks for no program id is part of a kernel, and its name may say enough.
        assert ast.get_docstring(kernel) or "program_id" not in ast.unparse(kernel), f"{kernel.name} has no docstring"


MODULES = [path for path in sorted((ROOT / "kernels").glob("*/*.py")) if path.parent.name not in ("cuda", "hopper")]
"""The files of packages: families, and what they share."""


def _readable(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", MODULES, ids=_readable)
def test_a_module_of_a_package_is_short_and_so_are_its_functions_on_the_host(path):
    text = path.read_text()
    assert text.count("\n") <= 500
    for node in ast.walk(ast.parse(text)):
        device = isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list)
        if isinstance(node, ast.FunctionDef) and not device:
            assert node.end_lineno - node.lineno < 60, node.name


@pytest.mark.parametrize("path", MODULES, ids=_readable)
def test_what_a_module_takes_from_another_is_public(path):
    assert not path.stem.startswith("_") or path.stem == "__init__", "what files share has a name for readers"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("kernels")):
            private = [alias.name for alias in node.names if alias.name.startswith("_")]
            assert not private, f"line {node.lineno} imports {private} of {node.module}"


def test_triton_kernels_stand_nowhere_else():
    # The survey and ncu's watch need a few kernels of their own, yardsticks and a marker; templates become kernels.
    strays = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "workflow").rglob("*.py")
        if not {"survey", "profiling", "templates"} & set(path.parts) and _jitted(ast.parse(path.read_text()))
    ]
    assert not strays


def test_edge_cases_give_their_reason_the_ladder_has_every_variant_and_the_sweep_is_sized_to_the_gpu():
    # In a process of its own: the interpreter binds a process, and other tests compile.
    run(
        "from atlas import catalog\nfrom atlas.host import gpus\n"
        "from atlas.benchmarking.providers import steps\n"
        "from atlas.reading.config import load_gpus\n"
        "blocks = load_gpus()\n"
        "for kernel in catalog.names():\n"
        "    declaration = catalog.load(kernel, interpret=True)\n"
        "    assert all(c.reason for c in declaration.edge_cases), kernel\n"
        # Every variant is on a ladder: none follows a variant that there is not, or itself.
        "    variants = [(d, v.name) for d, work in declaration.passes.items() for v in work.variants]\n"
        "    climbed = [(s['direction'], s['variant']) for s in steps(declaration)]\n"
        "    assert sorted(climbed) == sorted(variants), kernel\n"
        "    for name in ('t4', 'h200'):\n"
        "        gpu = gpus.gpu(name, blocks[name])\n"
        "        cases = declaration.cases(gpu)\n"
        "        assert cases and len(set(cases)) == len(cases), (kernel, name)\n"
        "        for work in declaration.passes.values():\n"
        "            assert 'torch' in work.peers, kernel\n"
        "            assert all(sum(work.bytes(c).values()) < gpu.memory_bytes / 2 for c in cases), (kernel, name)\n"
    )


def test_every_variant_that_a_benchmark_case_goes_to_takes_an_edge_case_that_can_vouch_for_its_config():
    """What takes none would be timed unchecked, and the tuner would refuse all of its configs."""
    out = run(
        "from atlas import catalog\nfrom atlas.host import gpus\n"
        "from atlas.reading.config import load_gpus\n"
        "from atlas.validation.certification import certifying_cases\n"
        "described = [gpus.gpu(name, block) for name, block in load_gpus().items() if block.get('build', True)]\n"
        "for kernel in catalog.names():\n"
        "    declaration = catalog.load(kernel, interpret=True)\n"
        "    for gpu in described:\n"
        "        taken = {}\n"
        "        for work in declaration.passes.values():\n"
        "            for case in declaration.cases(gpu):\n"
        "                for variant in work.variants:\n"
        "                    if not variant.unsupported(case, gpu):\n"
        "                        taken.setdefault((id(work), variant.name, case.dtype), (work, variant, case))\n"
        "        for work, variant, case in taken.values():\n"
        "            config = variant.default(case, gpu)\n"
        "            found, reason = certifying_cases(declaration, work, variant, config, case.dtype, gpu)\n"
        "            if not found:\n"
        "                print(kernel, gpu.name, variant.name, case.dtype, reason)\n"
    )
    assert not out, out


def test_a_config_meets_hard_inputs_on_the_case_that_validation_takes_wherever_its_variant_takes_that():
    """What a kernel's author provides for them: elsewhere a mask may stand between a reference and a kernel."""
    out = run(
        "from atlas import catalog\nfrom atlas.host import gpus\n"
        "from atlas.reading.config import load_gpus\n"
        "from atlas.validation import cases\n"
        "from atlas.validation.certification import certifying_cases\n"
        "gpu = gpus.gpu('h200', load_gpus()['h200'])\n"
        "for kernel in catalog.names():\n"
        "    declaration = catalog.load(kernel, interpret=True)\n"
        "    for work in declaration.passes.values():\n"
        "        known = [c for c in cases.candidates(declaration, gpu) if not cases.too_costly(work, c, gpu, None)]\n"
        "        for case in set(cases.small_cases(work, known)) & set(declaration.edge_cases):\n"
        "            for variant in work.variants:\n"
        "                if not variant.unsupported(case, gpu) and min(cases.sizes_of(case)) > 2:\n"
        "                    others = cases.evenly_spaced(variant, known[-1], gpu, 4)\n"
        "                    for config in (variant.default(case, gpu), *others):\n"
        "                        asked = declaration, work, variant, config, case.dtype, gpu\n"
        "                        if certifying_cases(*asked)[0][0] != case:\n"
        "                            print(kernel, variant.name, case, config)\n"
    )
    assert not out, out


def test_the_readme_s_table_is_the_one_that_the_command_prints():
    page = (ROOT / "README.md").read_text()
    printed = run("from atlas.stages import kernels; print(kernels.table())").rstrip("\n")
    rows = printed.splitlines()[2:]
    assert len(rows) == len(catalog.names())  # a row for each kernel
    assert kernels.replaced(page, printed, "README.md") == page, "write it: python -m atlas kernels --write README.md"
