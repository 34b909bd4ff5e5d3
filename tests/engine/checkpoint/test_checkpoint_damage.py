"""Damaged files are named and never trained on; a save that fails leaves the previous checkpoint as it was."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from small_run import ranked_run, single_run

from primus.engine.checkpoint import dist_format, files
from primus.engine.checkpoint.folder import newest
from primus.engine.config import CheckpointConfig
from primus.engine.parallel.layout import Layout
from primus.engine.parallel.sharding import Chunk, Shards
from primus.errors import RunError

FORMATS = ["torch_dist", "torch"]
SHARD = {"torch_dist": "__0_0.distcp", "torch": "mp_rank_00/model_optim_rng.pt"}


def config(folder: Path, **changes: object) -> CheckpointConfig:
    return CheckpointConfig(save=str(folder), load=str(folder), **changes)  # type: ignore[arg-type]


def overwrite(path: Path, data: bytes, at: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(at)
        stream.write(data)


def load_fails(c: CheckpointConfig, match: str) -> None:
    fresh = single_run(values=0)
    with pytest.raises(RunError, match=match):
        fresh.load(c)


@pytest.mark.parametrize("ckpt_format", FORMATS)
@pytest.mark.parametrize("size", [4096, 1], ids=["4KB", "one-byte"])
def test_an_overwritten_shard_is_named(tmp_path: Path, ckpt_format: str, size: int) -> None:
    c = config(tmp_path, ckpt_format=ckpt_format)
    run = single_run(values=1)
    big = "decoder.layers.0.big"
    run.model[big] = Shards((64, 64), torch.float32, [Chunk((0, 0), torch.ones(64, 64))])
    path = run.save(c, 2) / SHARD[ckpt_format]
    overwrite(path, b"\x7f" * size, at=path.stat().st_size // 2)
    fresh = single_run(values=0)
    fresh.model[big] = Shards((64, 64), torch.float32, [Chunk((0, 0), torch.zeros(64, 64))])
    with pytest.raises(RunError, match=rf"{SHARD[ckpt_format]} is damaged: .* is not what was written; ckpt_step"):
        fresh.load(c)


@pytest.mark.parametrize("ckpt_format", FORMATS)
def test_a_truncated_shard_is_named(tmp_path: Path, ckpt_format: str) -> None:
    c = config(tmp_path, ckpt_format=ckpt_format)
    path = single_run(values=1).save(c, 2) / SHARD[ckpt_format]
    os.truncate(path, path.stat().st_size - 100)
    load_fails(c, rf"{SHARD[ckpt_format]} is damaged: it has .* bytes of the .* that were written")


@pytest.mark.parametrize("name", ["__0_1.distcp", "common.pt"])
def test_a_lost_file_is_named(tmp_path: Path, name: str) -> None:
    (single_run(values=1).save(config(tmp_path), 2) / name).unlink()
    load_fails(config(tmp_path), rf"{name} is damaged: it is missing")


@pytest.mark.parametrize("name", ["common.pt", ".metadata"])
def test_a_changed_index_or_common_part_is_named(tmp_path: Path, name: str) -> None:
    path = single_run(values=1).save(config(tmp_path), 2) / name
    overwrite(path, b"\x00\x01", at=path.stat().st_size // 2)
    load_fails(config(tmp_path), rf"{name} is damaged: its content is not what was written")


def test_an_unreadable_record_of_checksums_is_named(tmp_path: Path) -> None:
    (single_run(values=1).save(config(tmp_path), 2) / "checksums.json").write_text("{")
    load_fails(config(tmp_path), "checksums.json is damaged")


@pytest.mark.parametrize("name", ["common.pt", "checksums.json"])
def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, name: str) -> None:
    path = single_run(values=1).save(config(tmp_path), 2) / name
    path.unlink()
    path.mkdir()
    reason = "cannot be read" if name == "checksums.json" else "it is missing"
    load_fails(config(tmp_path), rf"{name} is damaged: .*{reason}")


def test_a_full_disk_at_the_tracker_says_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    single_run(values=1).save(config(tmp_path), 2)
    original = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if Path(target).name == "latest_checkpointed_iteration.txt":
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(RunError, match=r"iteration 4 is written, but .*iteration.txt is not.*goes on from iteration 2"):
        single_run(values=2).save(config(tmp_path), 4)
    assert {p.name for p in tmp_path.iterdir()} == {"iter_0000002", "iter_0000004", "latest_checkpointed_iteration.txt"}


@pytest.mark.parametrize("ckpt_format", FORMATS)
def test_weights_that_nothing_can_check_are_not_trained_on(tmp_path: Path, ckpt_format: str) -> None:
    c = config(tmp_path, ckpt_format=ckpt_format)
    (single_run(values=1).save(c, 2) / "checksums.json").unlink()
    load_fails(c, "checksums.json is damaged: it is missing.*ckpt_step.*auto_continue_train.*latest_checkpointed_iteration")


@pytest.mark.parametrize("name", [".metadata", "common.pt"])
def test_damage_is_named_without_checksums_too(tmp_path: Path, name: str) -> None:
    """A checkpoint of another program has none."""
    folder = single_run(values=1).save(config(tmp_path), 2)
    (folder / "checksums.json").unlink()
    (folder / name).write_bytes(b"no archive" * 400)
    load_fails(config(tmp_path), rf"{name} is damaged: .*cannot be read")


def _load_damaged(rank: int, c: CheckpointConfig) -> str:
    run = ranked_run(Layout(world_size=2, tensor=2), 0, sharded_optimizer=False)
    with pytest.raises(RunError) as error:
        run.load(c)
    return str(error.value)


def _save_two(rank: int, c: CheckpointConfig) -> None:
    ranked_run(Layout(world_size=2, tensor=2), 1, sharded_optimizer=False).save(c, 2)


@pytest.mark.parametrize("ckpt_format", FORMATS)
def test_damage_in_one_ranks_part_stops_all_ranks(tmp_path: Path, ckpt_format: str) -> None:
    c = config(tmp_path, ckpt_format=ckpt_format)
    run_ranks(_save_two, 2, c)
    name = {"torch_dist": "__1_0.distcp", "torch": "mp_rank_01/model_optim_rng.pt"}[ckpt_format]
    path = tmp_path / "iter_0000002" / name
    for at in range(0, path.stat().st_size - 64, 1024):
        overwrite(path, b"\x55" * 64, at=at)
    texts = run_ranks(_load_damaged, 2, c)
    assert all(f"{name} is damaged" in text for text in texts)


class _FullDisk:
    """Stands in for a file system that takes `room` bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def open(self, path: Path, mode: str, *arguments: Any, **keywords: Any) -> Any:
        stream = _open(path, mode, *arguments, **keywords)
        if "w" not in mode:
            return stream
        return _FullFile(self, stream)


class _FullFile:
    def __init__(self, disk: _FullDisk, stream: Any) -> None:
        self._disk, self._stream = disk, stream

    def write(self, data: Any) -> int:
        self._disk.room -= memoryview(data).nbytes
        if self._disk.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self._stream.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> "_FullFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


_open = Path.open


def _save_on_full_disk(c: CheckpointConfig, room: int, monkeypatch: pytest.MonkeyPatch) -> RunError:
    disk = _FullDisk(room)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda *a, **k: disk.open(*a, **k))
        with pytest.raises(RunError) as error:
            single_run(values=2).save(c, 4)
    return error.value


@pytest.mark.parametrize("ckpt_format", FORMATS)
@pytest.mark.parametrize("room", [0, 1000, 8000, 24000])
def test_a_full_disk_leaves_the_previous_checkpoint(
    tmp_path: Path, ckpt_format: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = config(tmp_path, ckpt_format=ckpt_format)
    size = sum(p.stat().st_size for p in single_run(values=1).save(c, 2).rglob("*") if p.is_file())
    assert room < size
    error = _save_on_full_disk(c, room, monkeypatch)
    assert "iteration 4 could not be written: No space left on device" in str(error)
    assert str(tmp_path) in str(error)
    assert "the checkpoint of iteration 2 is intact" in str(error)
    assert {p.name for p in tmp_path.iterdir()} == {"iter_0000002", "latest_checkpointed_iteration.txt"}
    fresh = single_run(values=0)
    fresh.load(c)
    fresh.check(values=1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KB."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mounted)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("mounting a file system needs root")
    yield mounted
    subprocess.run(["umount", "-l", str(mounted)], check=True)


@pytest.mark.parametrize("ckpt_format", FORMATS)
def test_a_really_full_disk_leaves_the_previous_checkpoint(small_disk: Path, ckpt_format: str) -> None:
    c = config(small_disk, ckpt_format=ckpt_format)
    single_run(values=1).save(c, 2)
    big = single_run(values=2)
    big.model["big"] = Shards((100_000,), torch.float32, [Chunk((0,), torch.ones(100_000))])
    with pytest.raises(RunError, match="No space left on device"):
        big.save(c, 4)
    assert newest(small_disk) == (2, None)
    fresh = single_run(values=0)
    fresh.load(c)
    fresh.check(values=1)
    assert not list(small_disk.glob(".iter*"))


def _save_with_a_failing_rank(rank: int, c: CheckpointConfig) -> str:
    run = ranked_run(Layout(world_size=2, tensor=2), 2, sharded_optimizer=False)
    if rank == 1:

        class Failing(files.ItemFile):
            def write(self, data: Any) -> int:
                raise OSError(errno.EIO, os.strerror(errno.EIO), "the disk of rank 1")

        dist_format.ItemFile = Failing  # type: ignore[misc]
    with pytest.raises(RunError) as error:
        run.save(c, 4)
    return str(error.value)


def test_a_rank_that_cannot_write_fails_all_ranks(tmp_path: Path) -> None:
    c = config(tmp_path)
    run_ranks(_save_two, 2, c)
    texts = run_ranks(_save_with_a_failing_rank, 2, c)
    assert all("Input/output error (the disk of rank 1)" in text for text in texts)
    assert newest(tmp_path) == (2, None)
    assert not list(tmp_path.glob(".iter*"))


def test_a_file_in_place_of_the_folder_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "C").write_text("")
    with pytest.raises(RunError, match=r"could not be written: .*C\)"):
        single_run(values=1).save(config(tmp_path / "C"), 2)
