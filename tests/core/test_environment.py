"""The commit that a document states, and of what stands beside it."""

import re
import subprocess

import pytest
from atlas.host import environment


@pytest.fixture
def checkout(tmp_path):
    """A repository with a kernel and a stage."""
    for name in ("kernels/softmax.py", "workflow/stage.py", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    identify = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for words in (["init", "-q"], ["add", "."], [*identify, "commit", "-qm", "All"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    return tmp_path


def test_uncommitted_code_has_the_digest_of_its_difference(checkout):
    clean = environment.commit(checkout)
    assert re.fullmatch("[0-9a-f]{12}", clean)
    (checkout / "README.md").write_text("prose\n")
    assert environment.commit(checkout) == clean, "prose decides no figure"
    kernel = checkout / "kernels" / "softmax.py"
    kernel.write_text("x = 2\n")
    edited = environment.commit(checkout)
    assert re.fullmatch(rf"{clean}\+[0-9a-f]{{12}}", edited)
    subprocess.run(["git", "-C", str(checkout), "add", "."], check=True)
    assert environment.commit(checkout) == edited, "staged or not"
    kernel.write_text("x = 3\n")
    other = environment.commit(checkout)
    (checkout / "workflow" / "new.py").write_text("y = 1\n")
    with_new = environment.commit(checkout)
    (checkout / "workflow" / "stage.py").unlink()
    assert len({clean, edited, other, with_new, environment.commit(checkout)}) == 5, (
        "another edit, a new file, one less"
    )
    kernel.write_text("x = 2\n")
    (checkout / "workflow" / "new.py").unlink()
    (checkout / "workflow" / "stage.py").write_text("x = 1\n")
    assert environment.commit(checkout) == edited, "equal code, equal name"


def test_outside_git_there_is_no_commit(tmp_path):
    assert environment.commit(tmp_path) is None
