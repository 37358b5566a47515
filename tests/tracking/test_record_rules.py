"""What may not become a record, and what a record keeps of a number."""

import pytest
import sample_documents as sample
from atlas import cli
from atlas.results import records


@pytest.mark.parametrize("status", ["wrong", "failed", "suspect", "skipped", "unsupported"])
@pytest.mark.parametrize("stage", [sample.validate, sample.benchmark])
def test_a_kernel_of_which_one_stage_is_anything_but_ok_is_refused_whole(tmp_path, capsys, status, stage):
    sample.put_gpu(tmp_path, "h200", ("softmax",))
    sample.put(tmp_path, stage("softmax", "h200", status=status, reason="why"))
    assert cli.main(["record", "--results", str(tmp_path), "--gpu", "h200"]) == 1
    assert f"ended {status}: why" in capsys.readouterr().out
    assert not (tmp_path / "recorded" / "h200" / "softmax").exists()


def test_a_kernel_of_which_the_interpreter_ran_one_stage_is_refused_whole(tmp_path, capsys):
    sample.put_gpu(tmp_path, "h200", ("softmax",))
    sample.put(tmp_path, sample.validate("softmax", "h200", "functional"))
    assert cli.main(["record", "--results", str(tmp_path), "--gpu", "h200"]) == 1
    assert "is of kind functional; only what a GPU ran is recorded" in capsys.readouterr().out
    assert not (tmp_path / "recorded" / "h200" / "softmax").exists()


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (12.3456789, 12.34568),  # seven digits: finer than a clock, whose step is some 0.01 us
        (0.000123456789, 0.0001234568),
        (123456789012.0, 123456789012.0),  # bytes and operations are whole, and exact
        (123456789, 123456789),
        ({"samples_us": [12.3456789]}, {"samples_us": [12.35]}),  # four show the shape of a distribution
        ({"rows": [{"median_us": 12.3456789}]}, {"rows": [{"median_us": 12.34568}]}),
        (True, True),
    ],
)
def test_a_record_keeps_seven_digits_and_four_of_samples(value, kept):
    assert records.slim({"key": value}) == {"key": kept}


def test_a_record_keeps_sixteen_characters_of_a_binary_s_digest_and_all_of_others():
    """Two of 64 characters for each of hundreds of configs were most of what a build's record weighed."""
    kernels = [{"name": "_kernel", "ptx_sha256": "0123456789abcdef" * 4, "binary_sha256": None}]
    found = records.slim({"configs": [{"kernels": kernels}], "kernel_digest": "f" * 64})
    assert found["configs"][0]["kernels"] == [
        {"name": "_kernel", "ptx_sha256": "0123456789abcdef", "binary_sha256": None}
    ]
    assert found["kernel_digest"] == "f" * 64
    assert records.slim(found) == found
