"""kernels/ as a library, and the rules of the house that keep it one."""

import ast
import subprocess
import sys

import pytest
from atlas import ROOT

FILES = sorted((ROOT / "kernels").glob("*.py"))


def run(code: str) -> str:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT / 'workflow'}:{ROOT}", "TRITON_INTERPRET": "1"}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_public_functions_are_imported_from_the_package_whatever_was_imported_before():
    afresh = "import sys\nfor name in [m for m in sys.modules if m.split('.')[0] == 'kernels']: del sys.modules[name]\n"
    orders = (
        "from kernels import softmax; assert callable(softmax)\n",
        "import kernels.softmax; from kernels import softmax; assert callable(softmax)\n",
        "from kernels.softmax import DECLARATION; import kernels; assert kernels.softmax is DECLARATION.function\n",
    )
    run(afresh.join(orders))


def test_importing_the_package_imports_no_kernel_and_no_stage():
    out = run("import sys, kernels; print([m for m in sys.modules if m.startswith(('kernels.', 'atlas'))])")
    assert out.strip() == "[]"


def test_an_unknown_kernel_is_named_with_those_there_are():
    out = run("import kernels\ntry: kernels.nothing\nexcept AttributeError as e: print(e)")
    assert "'nothing'" in out and "softmax" in out


@pytest.mark.parametrize("path", [p for p in FILES if not p.stem.startswith("_")], ids=lambda p: p.stem)
def test_a_kernel_file_imports_torch_triton_and_the_declaration_alone(path):
    standard = {"math", "functools", "itertools", "typing", "__future__", "collections"}
    allowed = {"torch", "triton", "liger_kernel", "atlas.declaration"} | standard
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert any(name == a or name.startswith(f"{a}.") for a in allowed), f"line {node.lineno} imports {name}"


def _jitted(tree: ast.Module) -> list[ast.FunctionDef]:
    return [
        n
        for n in tree.body
        if isinstance(n, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in n.decorator_list)
    ]


@pytest.mark.parametrize("path", [p for p in FILES if not p.stem.startswith("_")], ids=lambda p: p.stem)
def test_a_triton_kernel_is_at_most_a_hundred_lines_and_says_what_a_program_owns(path):
    kernels = _jitted(ast.parse(path.read_text()))
    assert kernels
    for kernel in kernels:
        assert kernel.end_lineno - kernel.lineno < 100, kernel.name
        assert ast.get_docstring(kernel), f"{kernel.name} has no docstring"


def test_triton_kernels_stand_nowhere_else():
    # The survey and the proofs need a few kernels of their own: yardsticks and faults, not entries of the atlas.
    strays = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "workflow").rglob("*.py")
        if not {"survey", "proof"} & set(path.parts) and _jitted(ast.parse(path.read_text()))
    ]
    assert not strays


def test_edge_cases_give_their_reason_and_the_sweep_is_sized_to_the_gpu():
    # In a process of its own: the interpreter binds a process, and other tests compile.
    run(
        "from atlas import catalog, gpus\nfrom atlas.config import load_gpus\n"
        "blocks = load_gpus()\n"
        "for kernel in catalog.names():\n"
        "    declaration = catalog.load(kernel, interpret=True)\n"
        "    assert all(c.reason for c in declaration.edge_cases), kernel\n"
        "    for name in ('t4', 'h200'):\n"
        "        gpu = gpus.gpu(name, blocks[name])\n"
        "        cases = declaration.cases(gpu)\n"
        "        assert cases and len(set(cases)) == len(cases), (kernel, name)\n"
        "        for work in declaration.passes.values():\n"
        "            assert 'torch' in work.peers, kernel\n"
        "            assert all(sum(work.bytes(c).values()) < gpu.memory_bytes / 2 for c in cases), (kernel, name)\n"
    )
