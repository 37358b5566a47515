"""`atlas record pull`: a record from elsewhere comes in as data, bounded, whole, and over nothing that is there."""

import contextlib
import http.server
import io
import shutil
import socket
import tarfile
import threading
import zipfile

import pytest
import sample_documents as sample
from atlas import cli
from atlas.results import collection, files, records, sources


@pytest.fixture
def theirs(tmp_path):
    """The records of somebody else's H200: softmax, its survey and a proof."""
    folder = tmp_path / "theirs"
    sample.put_gpu(folder, "h200", ("softmax",))
    assert cli.main(["record", "--gpu", "h200", "--results", str(folder)]) == 0
    return folder / "recorded" / "h200"


@pytest.fixture
def mine(tmp_path):
    return tmp_path / "mine"


def pull(folder, source, *words):
    return cli.main(["record", "pull", str(source), *words, "--results", str(folder)])


def held(folder):
    """What lies in a results folder, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_comes_in_as_the_record_it_was(theirs, mine, capsys):
    assert pull(mine, theirs) == 0
    assert held(mine / "recorded" / "h200") == held(theirs)
    assert {entry.kind for entry in collection.collect(mine)} == {"recorded", "compiled"}
    capsys.readouterr()
    assert pull(mine, theirs) == 0 and capsys.readouterr().out.count("unchanged") == 5, "again"


def packed_as(form, theirs, target):
    """The record as an archive of a form."""
    path = target / f"record.{form}"
    if form == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for one in theirs.rglob("*.xz"):
                archive.write(one, f"h200/{one.relative_to(theirs)}")
            archive.writestr("h200/notes.json", "{}")
    else:
        with tarfile.open(path, {"tar": "w", "tar.gz": "w:gz", "tgz": "w:gz", "tar.xz": "w:xz"}[form]) as archive:
            archive.add(theirs, "h200")
    return path


@pytest.mark.parametrize("form", ["zip", "tar", "tar.gz", "tgz", "tar.xz"])
def test_an_archive_and_a_single_document_come_in(theirs, mine, tmp_path, form):
    assert pull(mine, packed_as(form, theirs, tmp_path)) == 0
    assert held(mine / "recorded" / "h200") == held(theirs)


def test_a_plain_measured_document_comes_in_packed_and_rounded(theirs, mine, tmp_path):
    path = tmp_path / "theirs" / "measured" / "h200" / "survey.json"
    assert pull(mine, path) == 0
    assert held(mine) == {"recorded/h200/survey.json.xz": (theirs / "survey.json.xz").read_bytes()}


def test_a_damaged_record_is_replaced_by_a_whole_one_and_kept(theirs, mine):
    pull(mine, theirs)
    path = mine / "recorded" / "h200" / "softmax" / "benchmark.json.xz"
    path.write_bytes(b"damaged")
    assert pull(mine, theirs) == 1 and pull(mine, theirs, "--force") == 0
    assert held(mine / "recorded" / "h200") == held(theirs)
    assert (mine / "replaced" / "h200" / "softmax.1" / "benchmark.json.xz").read_bytes() == b"damaged"


def another(folder, **changes):
    """A benchmark of softmax that is not the one there."""
    return sample.put(folder, sample.benchmark("softmax", "h200", seconds=99.0, **changes))


def test_a_record_that_is_there_is_refused_kept_apart_or_kept_aside(theirs, mine, tmp_path, capsys):
    pull(mine, theirs)
    before = held(mine)
    path = another(tmp_path / "third")
    capsys.readouterr()
    assert pull(mine, path) == 1
    assert "softmax: another record of it is there; --host LABEL keeps both" in capsys.readouterr().out
    assert held(mine) == before
    assert pull(mine, path, "--host", "lab2") == 0
    apart = files.found(mine / "recorded" / "h200@lab2" / "softmax", "benchmark")
    assert apart.exists() and before.items() <= held(mine).items()
    assert pull(mine, path, "--force") == 0 and pull(mine, theirs, "--force") == 0
    after = held(mine)
    assert before.items() <= after.items(), "the first again"
    assert {name for name in after if name.startswith("replaced/h200/softmax.2")} == {
        "replaced/h200/softmax.2/benchmark.json.xz"
    }, "and the other one is not lost either"


SOFTMAX = sample.benchmark("softmax", "h200")


@pytest.mark.parametrize(
    ("document", "code", "said"),
    [
        (sample.benchmark("softmax", "h200", status="wrong", reason="row 3: nan"), 1, "ended wrong: row 3: nan"),
        (SOFTMAX | {"kernel": "no_such_kernel"}, 1, "no kernel 'no_such_kernel' here"),
        (SOFTMAX | {"kind": "functional"}, 1, "is of kind functional"),
        (SOFTMAX | {"gpu": "h201"}, 2, "unknown GPU 'h201'"),
        (SOFTMAX | {"kernel": "../../etc"}, 2, "key 'kernel'"),
        (SOFTMAX | {"gpu": "../up"}, 2, "key 'gpu'"),
        (SOFTMAX | {"stage": "run"}, 2, "key 'stage' is 'run'"),
        (SOFTMAX | {"extra": 1}, 2, "unknown key 'extra'"),
        (
            sample.envelope("prove", None, "h200") | {"proof": "../x", "claims": [], "rows": [], "notes": []},
            2,
            "key 'proof' is '../x'",
        ),
    ],
    ids=["wrong", "kernel", "functional", "gpu", "kernel's path", "gpu's path", "stage", "key", "proof's path"],
)
def test_what_is_no_record_of_this_project_is_named_and_nothing_is_written(
    mine, tmp_path, capsys, document, code, said
):
    path = tmp_path / "benchmark.json"
    path.write_text(records.text_of(document))
    assert pull(mine, path) == code
    told = capsys.readouterr()
    assert said in told.out + told.err
    assert not list(mine.rglob("*.xz"))


def tar_of(tmp_path, *members):
    path = tmp_path / "hostile.tar"
    with tarfile.open(path, "w") as archive:
        for name, changes in members:
            member = tarfile.TarInfo(name)
            member.size = 2
            for key, value in changes.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(b"{}" if member.isreg() else b""))
    return path


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (("../../benchmark.json", {}), "leads out of the archive"),
        (("/etc/benchmark.json", {}), "leads out of the archive"),
        (("a\\..\\..\\benchmark.json", {}), "leads out of the archive"),
        (("benchmark.json", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd", "size": 0}), "is a link or a device"),
        (("benchmark.json", {"type": tarfile.LNKTYPE, "linkname": "x", "size": 0}), "is a link or a device"),
        (("benchmark.json", {"type": tarfile.FIFOTYPE, "size": 0}), "is a link or a device"),
        (("notes.txt", {}), "no document of a record in it"),
    ],
)
def test_a_hostile_archive_is_refused(mine, tmp_path, capsys, member, said):
    assert pull(mine, tar_of(tmp_path, member)) == 2
    assert said in capsys.readouterr().err and not mine.exists()


def test_a_bomb_is_refused_before_it_is_unpacked(mine, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sources, "MOST_INFLATED", 2**20)
    path = tmp_path / "record.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"{number}/benchmark.json", b" " * 2**19)
    assert pull(mine, path) == 2
    with tarfile.open(tmp_path / "record.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("benchmark.json")
        member.size = 2**21
        archive.addfile(member, io.BytesIO(b" " * 2**21))
    assert pull(mine, tmp_path / "record.tar.gz") == 2
    assert "holds more than 1048576 bytes" in capsys.readouterr().err and not mine.exists()


def test_an_archive_of_too_many_files_is_refused_unread(mine, theirs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sources, "MOST_MEMBERS", 3)
    for form in ("zip", "tar"):
        assert pull(mine, packed_as(form, theirs, tmp_path)) == 2
        assert "holds more than 3 files" in capsys.readouterr().err and not mine.exists()


def test_a_link_in_a_folder_is_not_followed(theirs, mine, capsys):
    (theirs / "softmax" / "profile.json").symlink_to("/etc/passwd")
    assert pull(mine, theirs) == 2
    assert "a symbolic link" in capsys.readouterr().err and not mine.exists()


@pytest.fixture
def server(tmp_path):
    """Serves a folder; ``/turn/N/NAME`` leads there in N steps, ``/to/URL`` anywhere."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            _, first, *rest = self.path.split("/", 3)
            if first in ("turn", "to"):
                count, name = (int(rest[0]), rest[1]) if first == "turn" else (0, "/".join(rest))
                self.send_response(302)
                self.send_header(
                    "Location", f"/turn/{count - 1}/{name}" if count else name if first == "to" else f"/{name}"
                )
                self.end_headers()
            elif first == "endless":
                self.send_response(200)
                self.end_headers()
                while True:
                    self.wfile.write(b" " * 2**16)
            else:
                super().do_GET()

        def log_message(self, *words):
            pass

        def handle(self):
            with contextlib.suppress(OSError):  # whoever asked has heard enough
                super().handle()

    folder = tmp_path / "served"
    folder.mkdir()
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: Handler(*a, directory=str(folder)))
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}", folder
    httpd.shutdown()
    httpd.server_close()


def test_a_url_brings_a_record_through_a_few_redirects(theirs, mine, tmp_path, server):
    url, folder = server
    shutil.copy(packed_as("zip", theirs, tmp_path), folder / "record.zip")
    assert pull(mine, f"{url}/turn/2/record.zip?token=secret") == 0
    assert held(mine / "recorded" / "h200") == held(theirs)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("turn/9/record.zip", "cannot be fetched"),
        ("to/file:///etc/passwd/record.zip", "is not allowed"),
        ("to/ftp://127.0.0.1/record.zip", "leads to ftp:, which is not followed"),
        ("missing.zip", "File not found"),
        ("endless/record.zip", "more than the 1000000 bytes"),
        ("large.zip", "has 1000001 bytes"),
    ],
)
def test_a_url_that_leads_elsewhere_or_never_ends_is_given_up(mine, server, capsys, monkeypatch, path, said):
    monkeypatch.setattr(sources, "MOST_BYTES", 1_000_000)
    url, folder = server
    (folder / "large.zip").write_bytes(b" " * 1_000_001)
    assert pull(mine, f"{url}/{path}") == 2
    told = capsys.readouterr().err
    assert said in told and "secret" not in told and not mine.exists()


def test_a_server_that_says_nothing_is_given_up(mine, capsys, monkeypatch):
    monkeypatch.setattr(sources, "SILENCE_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert pull(mine, f"http://user:secret@127.0.0.1:{silent.getsockname()[1]}/record.zip") == 2
    told = capsys.readouterr().err
    assert "cannot be fetched" in told and "secret" not in told


@pytest.mark.parametrize(
    "source", ["file:///etc/passwd", "ftp://a/record.zip", "gopher://a/record.zip", "nowhere", "a.txt"]
)
def test_another_source_is_a_mistake(mine, tmp_path, capsys, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    assert pull(mine, source) == 2
    assert source in capsys.readouterr().err
