"""The README's table of functions, which a person would otherwise have to keep true."""

import json
import os
import re
import subprocess
import sys

from atlas import ROOT

DECLARED = """
import json, kernels
from atlas import catalog
table = {}
for name in catalog.names():
    forward, backward = [], []
    for direction, work in catalog.load(name).passes.items():
        (forward if direction == "forward" else backward).extend(v.name for v in work.variants)
    table[name] = (kernels._functions(name), forward, backward)
print(json.dumps(table))
"""


def names(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def test_the_table_of_functions_has_every_kernel_and_exactly_the_variants_there_are():
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'workflow'}:{ROOT}", "TRITON_INTERPRET": "1"}
    printed = subprocess.check_output([sys.executable, "-c", DECLARED], env=environment, text=True)
    declared = json.loads(printed)
    shown = set()
    for functions, variants in re.findall(r"^\| (`\w.*?) \| (.*?) \|$", (ROOT / "README.md").read_text(), re.M):
        row = {kernel for kernel, (offered, _, _) in declared.items() if names(functions) & set(offered)}
        assert row, f"{functions}: no kernel offers these"
        forward, _, backward = variants.partition("backward")
        for column, said in ((1, forward), (2, backward)):
            assert names(said) == {v for kernel in row for v in declared[kernel][column]}, functions
        shown |= row
    assert shown == set(declared)
