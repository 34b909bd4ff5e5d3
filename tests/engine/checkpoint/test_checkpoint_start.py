"""What a run starts from."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from test_checkpoint_folder import make, track

from primus.engine.checkpoint.start import find_start, start_problems
from primus.engine.config import CheckpointConfig
from primus.errors import InputError


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with complete checkpoints of iterations 3 and 6."""
    make(tmp_path / "C", 3)
    make(tmp_path / "C", 6)
    track(tmp_path / "C", "6")
    return tmp_path / "C"


@pytest.fixture(autouse=True)
def _records_reach_caplog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("primus"), "propagate", True)


def test_load_resumes_fully_from_what_the_tracker_names(base: Path) -> None:
    start = find_start(CheckpointConfig(load=str(base)))
    assert start is not None
    assert (start.iteration, start.weights_only, start.load_optim, start.load_rng) == (6, False, True, True)


def test_finetune_takes_weights_alone(base: Path) -> None:
    start = find_start(CheckpointConfig(load=str(base), finetune=True))
    assert start is not None
    assert (start.weights_only, start.load_optim, start.load_rng) == (True, False, False)


def test_the_no_load_switches_do_just_that(base: Path) -> None:
    start = find_start(CheckpointConfig(load=str(base), no_load_optim=True))
    assert start is not None
    assert (start.load_optim, start.load_rng) == (False, True)
    start = find_start(CheckpointConfig(load=str(base), no_load_rng=True))
    assert start is not None
    assert (start.load_optim, start.load_rng) == (True, False)


def test_ckpt_step_replaces_the_tracker(base: Path) -> None:
    start = find_start(CheckpointConfig(load=str(base), ckpt_step=3))
    assert start is not None
    assert start.iteration == 3


def test_a_missing_ckpt_step_lists_what_there_is(base: Path) -> None:
    with pytest.raises(InputError, match=r"ckpt_step is 5, and load .*C holds no complete .*; complete are: 3, 6"):
        find_start(CheckpointConfig(load=str(base), ckpt_step=5))


def test_a_wrong_path_is_an_error_that_shows_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"load: .*nope does not exist.*exit_on_missing_checkpoint: false"):
        find_start(CheckpointConfig(load=str(tmp_path / "nope")))


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no complete checkpoint"):
        find_start(CheckpointConfig(load=str(tmp_path)))


def test_without_exit_on_missing_checkpoint_a_fresh_start_is_announced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_start(CheckpointConfig(load=str(tmp_path / "nope"), exit_on_missing_checkpoint=False)) is None
    assert "starting from fresh weights" in caplog.text


def test_one_checkpoint_given_as_folder_is_explained(base: Path) -> None:
    with pytest.raises(InputError, match=r"one checkpoint; give the folder that holds it, .*C, and ckpt_step"):
        find_start(CheckpointConfig(load=str(base / "iter_0000003")))


def test_pretrained_checkpoint_serves_when_load_holds_nothing(base: Path, tmp_path: Path) -> None:
    start = find_start(CheckpointConfig(load=str(tmp_path / "empty"), pretrained_checkpoint=str(base)))
    assert start is not None
    assert start.folder == base / "iter_0000006"
    assert start.weights_only


def test_load_goes_before_pretrained_checkpoint(base: Path, tmp_path: Path) -> None:
    make(tmp_path / "P", 1)
    start = find_start(CheckpointConfig(load=str(base), pretrained_checkpoint=str(tmp_path / "P")))
    assert start is not None
    assert (start.iteration, start.weights_only) == (6, False)


def test_a_missing_pretrained_checkpoint_is_fatal_whatever_the_switch(tmp_path: Path) -> None:
    config = CheckpointConfig(pretrained_checkpoint=str(tmp_path / "nope"), exit_on_missing_checkpoint=False)
    with pytest.raises(InputError, match=r"pretrained_checkpoint: .*nope does not exist"):
        find_start(config)


def test_auto_continue_overrides_and_announces_each_change(base: Path) -> None:
    config = CheckpointConfig(
        save=str(base),
        load="/elsewhere",
        ckpt_step=3,
        finetune=True,
        no_load_optim=True,
        no_load_rng=True,
        auto_continue_train=True,
    )
    start = find_start(config)
    assert start is not None
    assert (start.iteration, start.weights_only, start.load_optim, start.load_rng) == (6, False, True, True)
    text = "\n".join(start.notices)
    for change in ("load /elsewhere", "ckpt_step 3", "finetune: true -> false", "no_load_optim: true", "no_load_rng: true"):
        assert change in text


def test_auto_continue_starts_afresh_in_an_empty_folder(tmp_path: Path) -> None:
    assert find_start(CheckpointConfig(save=str(tmp_path / "new"), auto_continue_train=True)) is None


def test_auto_continue_without_checkpoint_follows_load(base: Path, tmp_path: Path) -> None:
    config = CheckpointConfig(save=str(tmp_path / "new"), load=str(base), finetune=True, auto_continue_train=True)
    start = find_start(config)
    assert start is not None
    assert start.weights_only


def test_auto_continue_recovers_a_lost_tracker(base: Path) -> None:
    (base / "latest_checkpointed_iteration.txt").unlink()
    start = find_start(CheckpointConfig(save=str(base), auto_continue_train=True))
    assert start is not None
    assert start.iteration == 6
    assert "missing or unreadable" in start.notices[0]


def test_a_fresh_start_into_a_full_folder_is_announced(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert find_start(CheckpointConfig(save=str(base))) is None
    assert "already holds checkpoints of iterations 3, 6" in caplog.text


def test_a_release_gives_weights_at_iteration_zero(base: Path) -> None:
    (base / "iter_0000006").rename(base / "release")
    track(base, "release")
    start = find_start(CheckpointConfig(load=str(base)))
    assert start is not None
    assert (start.folder.name, start.iteration, start.weights_only) == ("release", 0, True)


def test_looking_for_a_start_needs_no_torch() -> None:
    code = "import sys, primus.engine.checkpoint.start; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_problems_are_found_before_a_start_and_said_once(tmp_path: Path, base: Path, caplog: pytest.LogCaptureFixture) -> None:
    (problem,) = start_problems(CheckpointConfig(load=str(tmp_path / "nope")))
    assert "nope does not exist" in problem
    assert start_problems(CheckpointConfig(save=str(base))) == []
    assert caplog.text == ""
