"""What makes a kernel's identities change, and what does not; on small kernels."""

import pytest
from atlas.errors import AtlasError
from atlas.identity import kernel, today
from atlas.identity.code import Code
from atlas.identity.needs import NEEDS, changed, needed, sentence
from identity_kernels import edited, write

PLAIN, WIDE = "forward.plain", "forward.wide"
ALL = {PLAIN, WIDE, "inputs", "sweep", "cases", "references", "costs", "peers", "public", "choice"}


@pytest.fixture
def kernels(tmp_path):
    return write(tmp_path)


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


def test_a_file_that_does_not_parse_is_named_with_its_line_and_what_to_do(kernels):
    (kernels / "broken.py").write_text("x = 1\ny = = 2\n")
    with pytest.raises(AtlasError, match=r"broken\.py:2: not Python: invalid syntax; mend it, or move it out of"):
        today.of_kernel(kernels, "broken")


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
    assert due() == {"validate", "benchmark", "beyond", "profile", "energy"}
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
