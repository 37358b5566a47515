"""What is kept of a proof that is cut off."""

import json

from atlas.results.pieces import Pieces

CONTEXT = {"kernel_digest": "a", "gpu": "h200"}


def test_a_piece_is_made_once_and_found_by_the_next_run(tmp_path):
    path = tmp_path / "deep" / "pieces.jsonl"
    made = []
    for _ in range(2):
        piece = Pieces(path, CONTEXT).once("first", lambda: made.append(1) or {"seconds": 1.5})
        assert piece == {"seconds": 1.5}
    assert made == [1]
    assert Pieces(path, CONTEXT).all() == {"first": {"seconds": 1.5}}


def test_what_holds_for_another_kernel_file_is_made_anew(tmp_path):
    path = tmp_path / "pieces.jsonl"
    Pieces(path, CONTEXT).once("first", lambda: 1)
    changed = Pieces(path, CONTEXT | {"kernel_digest": "b"})
    assert changed.all() == {}
    assert changed.once("first", lambda: 2) == 2
    assert Pieces(path, CONTEXT).all() == {"first": 1}


def test_a_line_that_was_cut_off_costs_only_itself(tmp_path):
    path = tmp_path / "pieces.jsonl"
    Pieces(path, CONTEXT).once("first", lambda: 1)
    with path.open("a") as file:
        file.write(json.dumps({"context": CONTEXT, "name": "second", "piece": 2})[:-4])
    resumed = Pieces(path, CONTEXT)
    assert resumed.all() == {"first": 1}
    resumed.once("third", lambda: 3)
    assert Pieces(path, CONTEXT).all() == {"first": 1, "third": 3}
