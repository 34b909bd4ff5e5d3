"""Which checkpoints count, which one is next, and which are kept; no tensors."""

import json
from pathlib import Path

import pytest

from primus.engine.checkpoint import folder
from primus.engine.checkpoint.folder import complete_iterations, format_of, iteration_folder, newest, publish, retain


def make(base: Path, iteration: int) -> Path:
    """Make a folder that looks like a complete checkpoint."""
    path = base / f"iter_{iteration:07d}"
    path.mkdir(parents=True)
    (path / ".metadata").touch()
    (path / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
    return path


def track(base: Path, text: str) -> None:
    (base / folder.TRACKER).write_text(text)


def test_only_complete_checkpoints_count(tmp_path: Path) -> None:
    make(tmp_path, 3)
    make(tmp_path, 12)
    (tmp_path / "iter_0000020").mkdir()
    (tmp_path / "iter_notes").mkdir()
    (make(tmp_path, 30) / "metadata.json").write_text("{")
    assert complete_iterations(tmp_path) == [3, 12]


def test_wide_iterations_are_found(tmp_path: Path) -> None:
    make(tmp_path, 12345678)
    assert complete_iterations(tmp_path) == [12345678]


def test_a_missing_folder_holds_nothing(tmp_path: Path) -> None:
    assert complete_iterations(tmp_path / "nope") == []
    assert newest(tmp_path / "nope") == (None, None)


def test_the_tracker_is_obeyed_and_what_it_passes_over_is_said(tmp_path: Path) -> None:
    make(tmp_path, 3)
    make(tmp_path, 6)
    track(tmp_path, "3\n")
    iteration, notice = newest(tmp_path)
    assert iteration == 3
    assert notice is not None
    assert "iteration 6 is not used" in notice


@pytest.mark.parametrize("text", [None, "", "soon", "9"])
def test_a_lost_or_wrong_tracker_does_not_lose_the_run(tmp_path: Path, text: str | None) -> None:
    make(tmp_path, 3)
    make(tmp_path, 6)
    if text is not None:
        track(tmp_path, text)
    iteration, notice = newest(tmp_path)
    assert iteration == 6
    assert notice is not None
    assert "going on from the newest complete checkpoint, iteration 6" in notice


def test_a_torch_checkpoint_is_known_by_its_files(tmp_path: Path) -> None:
    own = tmp_path / "iter_0000004" / "mp_rank_00"
    own.mkdir(parents=True)
    assert format_of(own.parent) is None
    (own / "model_optim_rng.pt").touch()
    assert format_of(own.parent) == "torch"


def test_publishing_moves_the_tracker_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = folder.write_durably
    monkeypatch.setattr(folder, "write_durably", lambda f, d: (seen.append(complete_iterations(tmp_path)), original(f, d)))
    temporary = folder.open_temporary(tmp_path, 5)
    make(tmp_path, 0).rename(temporary / "x")
    for child in (temporary / "x").iterdir():
        child.rename(temporary / child.name)
    (temporary / "x").rmdir()
    publish(tmp_path, 5, temporary)
    assert seen == [[5]]
    assert newest(tmp_path) == (5, None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["iter_0000005", folder.TRACKER]


def test_a_checkpoint_moved_aside_by_a_killed_save_is_still_found(tmp_path: Path) -> None:
    make(tmp_path, 5).rename(tmp_path / ".iter_0000005.replaced-1-a")
    track(tmp_path, "5")
    assert newest(tmp_path) == (5, None)
    assert format_of(iteration_folder(tmp_path, 5)) == "torch_dist"
    folder.open_temporary(tmp_path, 7)
    assert (tmp_path / "iter_0000005").is_dir()


def test_the_next_save_removes_what_killed_ones_left(tmp_path: Path) -> None:
    for name in (".iter_0000004.tmp-77-abc", ".iter_0000002.removed-77-abc", ".iter_notes.tmp", "iter_notes"):
        (tmp_path / name).mkdir()
    temporary = folder.open_temporary(tmp_path, 6)
    assert {p.name for p in tmp_path.iterdir()} == {".iter_notes.tmp", "iter_notes", temporary.name}


@pytest.mark.parametrize(
    ("previous", "kept"),
    [(5, False), (6, True), (9, True), (None, True), (0, True)],
    ids=["between", "multiple", "newest", "none", "zero"],
)
def test_retention_keeps_multiples_and_the_newest(tmp_path: Path, previous: int | None, kept: bool) -> None:
    for iteration in (0, 5, 6, 9):
        make(tmp_path, iteration)
    deleted = retain(tmp_path, newest_iteration=9, previous=previous, interval=3)
    assert deleted == (None if kept else 5)
    assert complete_iterations(tmp_path) == ([0, 5, 6, 9] if kept else [0, 6, 9])


def test_retention_never_removes_a_newer_checkpoint(tmp_path: Path) -> None:
    make(tmp_path, 100)
    make(tmp_path, 10)
    assert retain(tmp_path, newest_iteration=10, previous=100, interval=3) is None
    assert complete_iterations(tmp_path) == [10, 100]


def test_retention_leaves_links_and_unknown_folders_alone(tmp_path: Path) -> None:
    real = make(tmp_path / "elsewhere", 5)
    (tmp_path / "iter_0000005").symlink_to(real)
    (tmp_path / "iter_0000007").mkdir()
    for previous in (5, 7):
        assert retain(tmp_path, newest_iteration=9, previous=previous, interval=3) is None
    assert real.is_dir()
    assert (tmp_path / "iter_0000007").is_dir()
