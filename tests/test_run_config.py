"""A refused start gives `config.yaml` back."""

from pathlib import Path

import pytest

from primus.run_config import accept_config, put_back_config, write_config


def text(folder: Path) -> str:
    return (folder / "config.yaml").read_text()


def test_a_refused_start_puts_back_what_was_there(tmp_path: Path) -> None:
    write_config("first", tmp_path)
    accept_config(tmp_path)
    write_config("second", tmp_path)
    assert text(tmp_path) == "second"
    put_back_config(tmp_path)
    assert text(tmp_path) == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["config.yaml"]


def test_a_refused_first_start_leaves_no_run(tmp_path: Path) -> None:
    for _ in range(2):
        write_config("first", tmp_path)
    put_back_config(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_accepted_one_stays(tmp_path: Path) -> None:
    for content in ("first", "second"):
        write_config(content, tmp_path)
        accept_config(tmp_path)
    put_back_config(tmp_path)
    assert text(tmp_path) == "second"


def test_after_a_killed_start_the_last_accepted_one_comes_back(tmp_path: Path) -> None:
    write_config("accepted", tmp_path)
    accept_config(tmp_path)
    for content in ("killed", "refused"):
        write_config(content, tmp_path)
    put_back_config(tmp_path)
    assert text(tmp_path) == "accepted"


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *_: object, **__: object) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        write_config("x", tmp_path)
    assert list(tmp_path.iterdir()) == []
