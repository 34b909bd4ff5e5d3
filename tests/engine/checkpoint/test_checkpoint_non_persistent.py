"""Global non-persistent checkpoints: which one a run goes on from, and that only the newest is kept."""

from pathlib import Path
from typing import Any

import pytest
from small_run import single_run

from primus.engine.checkpoint.folder import complete_iterations, run_folder
from primus.engine.checkpoint.start import Start, find_start
from primus.engine.config import CheckpointConfig, NonPersistentConfig
from primus.errors import InputError, RunError

GLOBAL = NonPersistentConfig(kind="global", save_interval=1)


def config_of(folder: Path, scratch: NonPersistentConfig = GLOBAL, **keys: Any) -> CheckpointConfig:
    return CheckpointConfig(save=str(folder), auto_continue_train=True, non_persistent=scratch, **keys)


def found(config: CheckpointConfig) -> Start:
    start = find_start(config)
    assert start is not None
    return start


@pytest.mark.parametrize("ckpt_format", ["torch_dist", "torch"])
def test_the_newest_alone_is_kept_beside_the_persistent_ones(tmp_path: Path, ckpt_format: Any) -> None:
    config = config_of(tmp_path, ckpt_format=ckpt_format)
    single_run(values=1).save(config, 1)
    for iteration in (2, 3, 4):
        single_run(values=iteration).save_non_persistent(config, iteration)
    assert complete_iterations(tmp_path) == [1]
    assert complete_iterations(tmp_path / "non_persistent") == [4]
    fresh = single_run(values=0)
    assert fresh.load(config).state.iteration == 4
    fresh.check(values=4)


def test_the_newer_counts_and_of_equal_ones_the_non_persistent(tmp_path: Path) -> None:
    config, run, scratch = config_of(tmp_path), single_run(values=1), tmp_path / "non_persistent"
    steps = (
        (run.save_non_persistent, 2, scratch / "iter_0000002"),
        (run.save, 2, scratch / "iter_0000002"),
        (run.save, 4, tmp_path / "iter_0000004"),
        (run.save_non_persistent, 6, scratch / "iter_0000006"),
    )
    for save, iteration, expected in steps:
        save(config, iteration)
        assert found(config).folder == expected
    assert "iteration 6 is a non-persistent checkpoint" in found(config).notices
    run.save(config, 8)
    assert any("the non-persistent checkpoint of iteration 6" in line and "is older" in line for line in found(config).notices)


def test_without_the_key_nothing_is_looked_for(tmp_path: Path) -> None:
    single_run(values=1).save_non_persistent(config_of(tmp_path), 2)
    assert find_start(config_of(tmp_path, NonPersistentConfig())) is None


def test_a_folder_of_its_own_serves_saving_and_loading(tmp_path: Path) -> None:
    """Other runs may have theirs there, and neither go on from these nor remove them."""
    scratch = NonPersistentConfig(kind="global", save_interval=1, global_dir=str(tmp_path / "scratch"))
    single_run(values=1).save_non_persistent(config_of(tmp_path / "save", scratch), 2)
    own = run_folder(tmp_path / "scratch", tmp_path / "save") / "iter_0000002"
    assert own.parent.parent == tmp_path / "scratch"
    other = config_of(tmp_path / "other", scratch)
    assert find_start(other) is None
    single_run(values=1).save_non_persistent(other, 1)
    assert found(config_of(tmp_path / "save", scratch)).folder == own
    load = CheckpointConfig(load=str(tmp_path / "save"), non_persistent=scratch)
    assert found(load).folder == own


def test_load_finds_them_under_the_loaded_folder_where_it_resumes(tmp_path: Path) -> None:
    run, config = single_run(values=1), config_of(tmp_path)
    run.save(config, 1)
    run.save_non_persistent(config, 2)

    def loaded(**keys: Any) -> int:
        return found(CheckpointConfig(load=str(tmp_path), non_persistent=GLOBAL, **keys)).iteration

    assert loaded() == 2
    assert loaded(finetune=True) == 1
    assert loaded(ckpt_step=1) == 1
    assert found(CheckpointConfig(pretrained_checkpoint=str(tmp_path), non_persistent=GLOBAL)).iteration == 1


def test_a_tracker_that_was_set_back_is_obeyed(tmp_path: Path) -> None:
    run, config = single_run(values=1), config_of(tmp_path)
    run.save(config, 1)
    run.save(config, 2)
    run.save_non_persistent(config, 3)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("1")
    assert found(config).folder == tmp_path / "iter_0000001"
    assert any("is not used, since the tracker was set back" in line for line in found(config).notices)


def test_a_run_that_was_set_back_forgets_what_lies_before_it(tmp_path: Path) -> None:
    """A resume would find the abandoned future newer than what the run has done since."""
    run, config = single_run(values=1), config_of(tmp_path)
    run.save_non_persistent(config, 9)
    run.save(config, 3)
    assert complete_iterations(tmp_path / "non_persistent") == []
    run.save_non_persistent(config, 5)
    run.save(config, 6)
    assert complete_iterations(tmp_path / "non_persistent") == [5], "an older one stays until the next of its kind"


def test_a_damaged_one_is_named_and_not_passed_over(tmp_path: Path) -> None:
    run, config = single_run(values=1), config_of(tmp_path)
    run.save(config, 1)
    (file, *_) = sorted(run.save_non_persistent(config, 2).glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RunError, match=r"non_persistent/iter_0000002/\S+ is damaged"):
        single_run(values=0).load(config)


def test_a_named_folder_without_either_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        find_start(CheckpointConfig(load=str(tmp_path / "nope"), non_persistent=GLOBAL))
