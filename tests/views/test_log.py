"""The kernel log as Markdown: a table for each kernel, GPU and pass, a line for each rung."""

from atlas import cli


def printed(results, capsys, *words):
    assert cli.main(["log", "--results", str(results), *words]) == 0
    return capsys.readouterr().out


def test_each_rung_stands_after_the_one_it_was_made_from(scenes, capsys):
    page = printed(scenes["one"], capsys)
    matmul = page[page.index("## matmul") :].split("\n## ")[0]
    lines = [line for line in matmul.splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in lines] == ["pointers", "persistent", "descriptors_persistent"]
    assert [line.split(" | ")[2] for line in lines] == ["", "pointers", "persistent"]
    assert "TFLOP/s (m=8192 n=8192 k=8192 bf16)" in lines[0]
    assert "times the fastest peer over 10 cases, from " in matmul  # five sizes in two dtypes


def test_one_gpu_can_be_asked_for_and_the_page_written(scenes, capsys, tmp_path):
    page = tmp_path / "docs" / "log.md"
    assert printed(scenes["five"], capsys, "--gpu", "a100", "--output", str(page)) == ""
    assert "**forward, a100" in page.read_text() and "h200" not in page.read_text()


def test_without_benchmarks_it_is_a_page_that_says_what_it_would_hold(scenes, capsys):
    page = printed(scenes["none"], capsys)
    assert page.startswith("# Kernel log") and "##" not in page
    assert page.rstrip().endswith("No benchmark of a kernel was found.")


def test_a_gpu_that_has_no_block_is_refused_and_one_near_it_offered(scenes, capsys):
    assert cli.main(["log", "--results", str(scenes["one"]), "--gpu", "h20"]) == 2
    assert "unknown GPU 'h20': no such block in gpus.yaml; did you mean 'h200'?" in capsys.readouterr().err
