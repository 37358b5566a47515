"""A user's mistakes: one clear sentence naming file, key and remedy, a non-zero exit, and nothing lost."""

import json
import shutil

import pytest
from atlas import cli
from atlas.errors import AtlasError
from atlas.host import gpus
from atlas.plan import jobs as plan
from atlas.reading.config import load_config, load_yaml

from .conftest import make_checkout


def sentence(done) -> str:
    """What the command said when it failed."""
    assert done.returncode != 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    return done.stderr + done.stdout


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A checkout that no test edits."""
    return make_checkout(tmp_path_factory.mktemp("pristine") / "project")


@pytest.fixture
def settled(tmp_path, monkeypatch):
    """Edits a copy of the config and settles the plan by it, as Snakemake does when it begins; returns the message."""
    monkeypatch.setenv(gpus.PLACES_VARIABLE, "")  # so that what settling puts there goes with the test
    monkeypatch.delenv(gpus.PLACES_VARIABLE)

    def settle(name, old, new, devices):
        monkeypatch.setenv("KERNEL_ATLAS_DEVICES", devices)
        for variable in ("CONFIG_FILE", "GPUS_FILE"):
            path = shutil.copy(getattr(plan, variable), tmp_path)
            monkeypatch.setattr(plan, variable, tmp_path / name if path.endswith(name) else getattr(plan, variable))
        text = (tmp_path / name).read_text()
        assert old in text, f"{name} no longer says {old!r}"
        (tmp_path / name).write_text(text.replace(old, new))
        with pytest.raises(AtlasError) as caught:
            plan.settle(load_yaml(plan.CONFIG_FILE))
        return str(caught.value)

    return settle


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs ``python -m atlas`` in a folder, in this process; returns what it said when it failed."""

    def run(root, *words):
        monkeypatch.chdir(root)
        monkeypatch.setenv("KERNEL_ATLAS_DEVICES", "")
        assert cli.main(list(words)) == 2
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kernels: all", "kernels: [sofmax]", ["config.yaml", "'kernels'", "sofmax", "did you mean 'softmax'?"]),
        ("gpus: all", "gpus: [h20]", ["config.yaml", "'gpus'", "'h20'", "did you mean 'h200'?"]),
        (
            "require: []",
            "require: [h200]",
            ["'h200' is required but not here", "NVIDIA H200", "no GPU", "key 'require'"],
        ),
        ("strategy:", "stratgy:", ["config.yaml", "stratgy", "did you mean 'strategy'?"]),
        ("seeds: 5", "seeds: many", ["config.yaml", "validate.seeds", "'many'", "integer"]),
        ("seeds: 5", "seeds: '0'", ["config.yaml", "validate.seeds", "minimum of 1"]),
        ("run: false", "run: 'perhaps'", ["config.yaml", "profile.run", "'perhaps'", "boolean"]),
        ("seeds: 5", "seeds: 0", ["config.yaml", "validate.seeds", "minimum of 1"]),
        ("strategy: halving", "strategy: guess", ["autotune.strategy", "'guess'", "exhaustive"]),
        ("kernels: all", "kernels: 5", ["'kernels'", "5 does not fit", "all, or a list of names"]),
        ("placement: local", "placement: [", ["config.yaml", "line"]),
        ("seeds: 5", "seeds: 5\n  seeds: 1", ["config.yaml, line", "key 'seeds' stands there twice"]),
        (
            "placement: local",
            "placement: local\nkernels: []",
            ["config.yaml, line", "key 'kernels' stands there twice"],
        ),
        ("budget_seconds: 120", "budget_seconds: .nan", ["key 'autotune.budget_seconds': nan is not a finite"]),
        ("min_seconds: 0.2", "min_seconds: .inf", ["key 'benchmark.min_seconds': inf is not a finite number"]),
        ("seeds: 5", f"seeds: {30 * '9'}", ["key 'validate.seeds': an integer of more than 64 bits"]),
        ("seeds: 5", f"seeds: {9000 * '9'}", ["config.yaml, line", "an integer of more than 64 bits"]),
        ("kernels: all", "yes: all", ["key True is no text; write it in quotes"]),
        ("kernels: all", f"kernels: {3000 * '['}{3000 * ']'}", ["config.yaml: nested more than 32 deep"]),
        ("kernels: all", f"kernels: {40 * '['}{40 * ']'}", ["nested more than 32 deep"]),
        ("kernels: all", "kernels: &a [*a]", ["nested more than 32 deep"]),
        ("kernels: all", "? [a]\n: b", ["a key is no text"]),
    ],
)
def test_a_mistake_in_config_yaml_is_named(settled, old, new, says):
    message = settled("config.yaml", old, new, devices="")
    for words in says:
        assert words in message


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("target: {cuda: 75}", "target: {cuda: turing}", ["gpus.yaml", "t4.target.cuda", "turing", "integer"]),
        ("  sms: 40", "  smz: 40", ["gpus.yaml", "t4", "smz", "did you mean 'sms'?"]),
        ("  sms: 40\n", "", ["gpus.yaml", "t4", "missing key 'sms'"]),
        ("    bandwidth_gb_per_s: 320", "    bandwidth_gb_per_s: fast", ["gpus.yaml", "bandwidth_gb_per_s", "number"]),
        ("match: (Tesla|NVIDIA) T4$", "match: (Tesla", ["gpus.yaml", "t4.match", "regex"]),
        ("match: (Tesla|NVIDIA) T4$", "match: (T+)+4$", ["gpus.yaml", "t4.match", "'(T+)+4$'", "repeats a group"]),
        ("\nt4:", "\na100:", ["gpus.yaml, line", "key 'a100' stands there twice"]),
        ("\nt4:", "\nyes:", ["gpus.yaml", "key True is no text"]),
        ("\nt4:", "\n4:", ["gpus.yaml", "key 4 is no text"]),
        ("\nt4:", "\nT4:", ["gpus.yaml", "T4", "lower-case"]),
        ("  sms: 40", "  sms: .inf", ["gpus.yaml", "key 't4.sms': inf is not a finite number"]),
    ],
)
def test_a_mistake_in_gpus_yaml_is_named(settled, old, new, says):
    message = settled("gpus.yaml", old, new, devices="NVIDIA H200")
    for words in says:
        assert words in message


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kernels: all", "kernels: [sofmax]", "did you mean 'softmax'?"),
        ("placement: local", "placement: [", "line"),  # before Snakemake reads it, which names no line
    ],
    ids=["settled", "parsed"],
)
def test_snakemake_ends_with_the_sentence_and_no_traceback(checkout, old, new, says):
    checkout.edit("config/config.yaml", old, new)
    message = sentence(checkout.snakemake("-n"))
    assert "config.yaml" in message and says in message


BILLIONS = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 30)}]\n" for i in range(1, 9))
"""Nine lines, each of which names the one before thirty times."""

NO_CONFIG = {
    "a list": (b"- kernels\n", "['kernels'] is no mapping"),
    "a scalar": (b"softmax\n", "'softmax' is no mapping"),
    "nothing": (b"", "None is no mapping"),
    "binary": (b"\x7fELF\x02\x01\x00\xff", "not UTF-8 at byte 7"),
    "control characters": (b"kernels: \x00\x01", "not YAML that can be used"),
    "half a character": (b'kernels: "\\ud800"', "text with half a character"),
    "too long": (b"#" * 2**21, "has 2097152 bytes, of which 1048576 are read at most"),
    "lines that name one another": (BILLIONS.encode(), "holds more than 2000000 values"),
}


@pytest.mark.parametrize(("content", "says"), NO_CONFIG.values(), ids=NO_CONFIG)
def test_what_is_no_config_is_named(tmp_path, content, says):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(AtlasError) as caught:
        load_config(path)
    assert str(caught.value).startswith(str(path)) and says in str(caught.value) and "\n" not in str(caught.value)


def test_keys_that_are_merged_in_may_be_overridden(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: &base {a: 1, b: 2}\nown: {<<: *base, b: 3}\n")
    assert load_config(tmp_path / "mine.yaml")["own"] == {"a": 1, "b": 3}


def test_another_config_file_is_looked_at_as_closely(checkout):
    (checkout.root / "mine.yaml").write_text("validate: {seeds: 5}\nvalidate: {seeds: 1}\n")
    message = sentence(checkout.snakemake("-n", "--configfile", "mine.yaml"))
    assert "mine.yaml, line 2: not YAML that can be used: key 'validate' stands there twice" in message


def test_a_number_that_is_none_in_the_config_of_the_command_line_is_named(pristine):
    message = sentence(pristine.snakemake("-n", "--config", "autotune={budget_seconds: .nan}"))
    assert "key 'autotune.budget_seconds': nan is not a finite number" in message


@pytest.mark.parametrize(
    "words",
    [
        ("verdict",), ("tables",), ("log", "--gpu", "h200"), ("choose", "softmax", "--gpu", "h200", "--dtype", "bf16",
        "--case", "m=1,n=1"), ("validate", "softmax", "--gpu", "cpu"), ("debug", "softmax", "--gpu", "cpu"),
        ("record", "--gpu", "h200"), ("export", "--gpu", "h200"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_folder_for_the_blocks_of_the_gpus_is_named(command, tmp_path, words):
    chosen = ["--gpus", "h200"] if words[0] == "verdict" else []
    said = command(tmp_path, *words, *chosen, "--gpus-file", str(tmp_path))
    assert said == f"atlas {words[0]}: {tmp_path}: is a folder, not a file\n"


NUMBERS = {
    "autotune": ("--budget-seconds", "--trial-timeout-seconds", "--jobs"),
    "benchmark": ("--min-seconds", "--max-samples", "--jobs"),
    "build": ("--timeout-seconds", "--jobs", "--sample"),
    "validate": ("--seeds", "--jobs"),
    "profile": ("--cases",),
    "energy": ("--seconds",),
    "debug": ("--seed",),
}


@pytest.mark.parametrize(("stage", "option"), [(stage, name) for stage, names in NUMBERS.items() for name in names])
def test_a_number_that_no_option_means_is_named(command, tmp_path, stage, option):
    for number in ("nan", "inf", "-inf", "-1", "1e999") if option.endswith("seconds") else ("-1", "9" * 30):
        said = command(tmp_path, stage, "softmax", "--gpu", "t4", f"{option}={number}")
        assert said.startswith(f"atlas {stage}: command line: {option} is ") and said.count("\n") == 1


def test_an_unknown_name_on_the_command_line_is_named(pristine):
    assert "did you mean 'matmul'?" in sentence(pristine.atlas("build", "matmull", "--gpu", "t4"))
    assert "did you mean 't4'?" in sentence(pristine.atlas("build", "matmul", "--gpu", "t44"))


def test_a_gpu_that_is_not_here_is_named_by_a_stage(command, tmp_path):
    message = command(tmp_path, "validate", "vector_add", "--gpu", "a100")
    assert "'a100' is not here" in message and "A100.*80GB" in message


def test_a_config_file_that_is_missing_is_named(checkout):
    (checkout.root / "config" / "gpus.yaml").unlink()
    assert "gpus.yaml: no such file" in sentence(checkout.snakemake("-n"))


RECORD = "results/recorded/h200/vector_add/build.json"


@pytest.fixture(scope="module")
def genuine(pristine):
    """The text of a genuine record."""
    done = pristine.atlas("build", "vector_add", "--gpu", "h200", "--sample", "1")
    assert done.returncode == 0, done.stderr
    return (pristine.root / "results/measured/h200/vector_add/build.json").read_text()


@pytest.fixture
def record(tmp_path, genuine):
    """A genuine record in a folder of its own."""
    path = tmp_path / RECORD
    path.parent.mkdir(parents=True)
    path.write_text(genuine)
    return path


@pytest.mark.parametrize("view", ["tables", "track", "verdict", "report"])
def test_a_record_cut_in_half_is_named_and_left_as_it_is(command, tmp_path, record, view):
    half = record.read_text()[: record.stat().st_size // 2]
    record.write_text(half)
    message = command(tmp_path, view)
    assert RECORD in message and "cut off" in message and "restore it from git" in message
    assert record.read_text() == half, "nothing is lost: the file stays for whoever can mend it"


def test_a_record_of_an_older_schema_is_named(command, tmp_path, record):
    document = json.loads(record.read_text()) | {"schema_version": 0}
    record.write_text(json.dumps(document))
    message = command(tmp_path, "tables")
    assert RECORD in message and "'schema_version' is 0" in message and "measure it again" in message


def test_a_record_with_a_value_of_the_wrong_type_is_named(command, tmp_path, record):
    document = json.loads(record.read_text())
    document["configs"][0]["registers"] = "many"
    record.write_text(json.dumps(document))
    message = command(tmp_path, "tables")
    assert RECORD in message and "configs.0.registers" in message


def test_a_results_folder_that_cannot_be_written_is_named(checkout):
    # A file where the folder should be stops every user, root too; permissions would not stop root.
    (checkout.root / "results").mkdir()
    (checkout.root / "results" / "measured").write_text("in the way")
    message = sentence(checkout.atlas("build", "vector_add", "--gpu", "t4", "--sample", "1"))
    assert "results/measured/t4/vector_add/build.json: cannot be written" in message


def test_a_kernel_file_that_does_not_import_is_a_result_of_its_own(checkout):
    (checkout.root / "kernels" / "broken.py").write_text("import torch\nraise RuntimeError('half written')\n")
    done = checkout.atlas("build", "broken", "--gpu", "t4")
    assert done.returncode == 0, "a failure is a document, so that the run goes on"
    document = json.loads((checkout.root / "results/measured/t4/broken/build.json").read_text())
    assert document["status"] == "failed" and "half written" in document["reason"]
    message = sentence(checkout.atlas("verdict"))
    assert "broken" in message and "half written" in message
