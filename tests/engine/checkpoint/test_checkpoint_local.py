"""Local checkpoints: every rank has a node of its own here, so that what it does not have must come from another rank."""

import errno
import logging
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from small_run import SmallRun, ranked_run, single_run

from primus.engine.checkpoint import local, local_folder, replicas
from primus.engine.checkpoint.files import ItemFile
from primus.engine.checkpoint.folder import run_folder
from primus.engine.checkpoint.local import newest_start
from primus.engine.checkpoint.replicas import keepers
from primus.engine.checkpoint.start import find_start
from primus.engine.config import CheckpointConfig, NonPersistentConfig
from primus.engine.parallel.layout import Layout
from primus.engine.parallel.sharding import Chunk, Shards
from primus.errors import InputError, RunError

DP2, TP2, TP2_DP2 = Layout(world_size=2), Layout(world_size=2, tensor=2), Layout(world_size=4, tensor=2)
ALGORITHMS = ("fully_parallel", "atomic")


def config_of(folder: Path, rank: int, **scratch: Any) -> CheckpointConfig:
    """Return the configuration of a rank whose node has its own disk; persistent checkpoints are shared."""
    scratch = {"kind": "local", "save_interval": 1, "local_dir": str(folder / f"node-{rank}"), **scratch}
    return CheckpointConfig(save=str(folder / "save"), auto_continue_train=True, non_persistent=NonPersistentConfig(**scratch))


def on_ranks(check: Callable[..., Any], layout: Layout, folder: Path, **scratch: Any) -> list[Any]:
    """Call `check(config, run)` with a fresh run on every rank of a layout."""

    def body(rank: int) -> Any:
        logging.getLogger("primus").setLevel(logging.ERROR)
        run = ranked_run(layout, values=0, sharded_optimizer=layout.data > 1)
        return check(config_of(folder, rank, **scratch), run)

    return run_ranks(body, layout.world_size)


def saved(layout: Layout, folder: Path, iteration: int = 4, values: int = 3, **scratch: Any) -> None:
    def save(config: CheckpointConfig, run: SmallRun) -> None:
        full = ranked_run(layout, values=values, sharded_optimizer=layout.data > 1)
        full.save_non_persistent(config, iteration)

    on_ranks(save, layout, folder, **scratch)


def restored(config: CheckpointConfig, run: SmallRun) -> int:
    """Resume, hold every value against that of the run that was saved, and return the iteration."""
    loaded = run.load(config)
    assert loaded.optimizer_common == {"step": 4, "scheduler": {"num_steps": 32}, "loss_scaler": None}
    assert loaded.rng is not None
    run.check(values=3)
    return loaded.state.iteration


def start_of(config: CheckpointConfig, run: SmallRun) -> Any:
    return newest_start(find_start(config), config, run.mesh)


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("layout", [Layout(world_size=1), DP2, TP2_DP2], ids=["one", "dp2", "tp2-dp2"])
def test_each_rank_goes_on_from_its_part_to_the_bit(layout: Layout, algo: str, tmp_path: Path) -> None:
    saved(layout, tmp_path, local_algo=algo)
    assert on_ranks(restored, layout, tmp_path, local_algo=algo) == [4] * layout.world_size
    assert not (tmp_path / "save").exists()


def test_fully_parallel_parts_hold_shared_rectangles_once(tmp_path: Path) -> None:
    sizes = {}
    for algo in ALGORITHMS:
        saved(DP2, tmp_path / algo, local_algo=algo)
        parts = [torch.load(part, weights_only=True) for part in (tmp_path / algo).rglob("part_*.pt")]
        sizes[algo] = sum(data.numel() for part in parts for data in part["data"])
        whole = sum(shape.numel() for shape in map(torch.Size, parts[0]["shapes"].values()))
    assert sizes["atomic"] > sizes["fully_parallel"]
    weights_and_moments = 13 * 4 + 16 * 4 + 4 * 8 + 4
    assert sizes["fully_parallel"] == 3 * weights_and_moments >= whole
    assert sizes["atomic"] == 4 * weights_and_moments, "the weights twice, the divided moments once"


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_lost_node_is_restored_from_the_copies_on_another(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_PIECE", 1000)
    copies = {"local_algo": algo, "replication_jump": 2}
    saved(TP2_DP2, tmp_path, **copies)
    for rank in (1, 2):  # of either group of keepers one
        shutil.rmtree(tmp_path / f"node-{rank}")
    assert on_ranks(restored, TP2_DP2, tmp_path, **copies) == [4] * 4


def test_ranks_that_come_back_on_other_nodes_find_their_parts(tmp_path: Path) -> None:
    saved(DP2, tmp_path)
    (tmp_path / "node-0").rename(tmp_path / "other")
    (tmp_path / "node-1").rename(tmp_path / "node-0")
    (tmp_path / "other").rename(tmp_path / "node-1")
    assert on_ranks(restored, DP2, tmp_path) == [4, 4]


def test_groups_of_keepers_are_a_jump_apart_and_cover_the_ranks() -> None:
    assert [keepers(rank, jump=8, factor=2) for rank in (0, 8, 7, 17, 31)] == [(0, 8), (0, 8), (7, 15), (17, 25), (23, 31)]
    assert keepers(5, jump=2, factor=4) == (1, 3, 5, 7)
    for jump, factor in ((1, 2), (4, 2), (2, 3)):
        groups = {keepers(rank, jump=jump, factor=factor) for rank in range(24)}
        assert sorted(rank for group in groups for rank in group) == list(range(24))


def damage(part: Path) -> None:
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)


def test_a_damaged_part_gives_way_to_its_copy(tmp_path: Path) -> None:
    saved(DP2, tmp_path, replication_jump=1)
    (part,) = (tmp_path / "node-0").rglob("part_00000.pt")
    damage(part)
    assert on_ranks(restored, DP2, tmp_path, replication_jump=1) == [4, 4]


def test_a_damaged_part_without_a_copy_is_named_on_all_ranks(tmp_path: Path) -> None:
    saved(DP2, tmp_path)
    (part,) = (tmp_path / "node-1").rglob("part_*.pt")
    damage(part)

    def fails(config: CheckpointConfig, run: SmallRun) -> str:
        with pytest.raises(RunError) as caught:
            run.load(config)
        run.check(values=0)
        return str(caught.value)

    for message in on_ranks(fails, DP2, tmp_path):
        assert f"the checkpoint file {part} is damaged" in message
        assert "there is no other copy of it: remove iter_0000004-" in message


def test_parts_lost_without_a_copy_leave_the_persistent_checkpoint(tmp_path: Path) -> None:
    def persist(config: CheckpointConfig, run: SmallRun) -> None:
        run.save(config, 2)

    on_ranks(persist, DP2, tmp_path)
    saved(DP2, tmp_path)
    shutil.rmtree(tmp_path / "node-1")
    for start in on_ranks(start_of, DP2, tmp_path):
        assert (start.iteration, start.is_local, start.folder) == (2, False, tmp_path / "save" / "iter_0000002")
        assert "is not used: no rank sees the parts of 1" in start.notices[-1]


def test_the_newer_of_local_and_persistent_counts_and_of_equal_ones_the_local(tmp_path: Path) -> None:
    def look(config: CheckpointConfig, run: SmallRun) -> list[tuple[int, bool]]:
        found = []
        for save, iteration in ((run.save, 3), (run.save_non_persistent, 4), (run.save, 4), (run.save, 5)):
            save(config, iteration)
            start = start_of(config, run)
            found.append((start.iteration, start.is_local))
        return found

    assert on_ranks(look, DP2, tmp_path) == [[(3, False), (4, True), (4, True), (5, False)]] * 2
    (tmp_path / "save" / "latest_checkpointed_iteration.txt").write_text("3")
    for start in on_ranks(start_of, DP2, tmp_path):
        assert (start.iteration, start.is_local) == (3, False)
        assert "is not used: the tracker was set back" in start.notices[-1]


def test_a_run_that_was_set_back_forgets_what_lies_before_it(tmp_path: Path) -> None:
    def look(config: CheckpointConfig, run: SmallRun) -> tuple[int, bool]:
        run.save_non_persistent(config, 9)
        run.save(config, 3)
        start = start_of(config, run)
        return start.iteration, start.is_local

    assert on_ranks(look, DP2, tmp_path) == [(3, False)] * 2
    assert not list(tmp_path.rglob("part_*"))


def test_weights_alone_and_named_steps_do_not_look_for_local_ones(tmp_path: Path) -> None:
    run, config = single_run(values=3), config_of(tmp_path, 0)
    run.save(config, 2)
    run.save_non_persistent(config, 4)
    load: dict[str, Any] = {"load": str(tmp_path / "save"), "non_persistent": config.non_persistent}
    assert start_of(CheckpointConfig(**load), run).is_local
    for keys in ({"finetune": True}, {"ckpt_step": 2}):
        assert not start_of(CheckpointConfig(**load, **keys), run).is_local
    assert not start_of(CheckpointConfig(load=load["load"]), run).is_local


def test_a_missing_checkpoint_is_an_error_once_no_rank_has_a_local_one(tmp_path: Path) -> None:
    config = CheckpointConfig(load=str(tmp_path / "save"), non_persistent=config_of(tmp_path, 0).non_persistent)
    run = single_run(values=3)
    assert find_start(config) is None
    with pytest.raises(InputError, match=r"load: .*save does not exist; correct the path, or set exit_on_missing_checkpoint"):
        newest_start(None, config, run.mesh)
    run.save_non_persistent(config_of(tmp_path, 0), 4)
    assert start_of(config, run).is_local


def test_another_layout_leaves_local_ones_alone_and_says_so(tmp_path: Path) -> None:
    saved(DP2, tmp_path)

    def look(config: CheckpointConfig, run: SmallRun) -> Any:
        run.save(config, 2)
        return start_of(config, run)

    for start in on_ranks(look, TP2, tmp_path):
        assert not start.is_local
    saved(DP2, tmp_path)
    for start in on_ranks(start_of, TP2, tmp_path):
        assert (start.iteration, start.is_local) == (2, False)
        assert "belongs to another layout" in start.notices[-1]


def test_only_the_newest_is_kept_and_leftovers_are_removed(tmp_path: Path) -> None:
    run, config = single_run(values=3), config_of(tmp_path, 0)
    own = local_folder.rank_folder(run_folder(tmp_path / "node-0", tmp_path / "save"), 0)
    run.save_non_persistent(config, 2)
    (own / ".iter_0000003-0").mkdir()
    run.save_non_persistent(config, 4)
    (folder,) = own.iterdir()
    assert folder.name.startswith("iter_0000004-")
    assert restored(config, single_run(values=0)) == 4


def test_runs_that_share_a_folder_leave_one_another_alone(tmp_path: Path) -> None:
    """Neither goes on from the other's, which has the same shapes, nor removes it."""
    first, second = (config_of(tmp_path / name, 0, local_dir=str(tmp_path / "disk")) for name in ("a", "b"))
    single_run(values=3).save_non_persistent(first, 4)
    assert start_of(second, single_run(values=0)) is None
    single_run(values=5).save_non_persistent(second, 9)
    single_run(values=5).save(second, 3)  # set back
    assert restored(first, single_run(values=0)) == 4
    assert start_of(second, single_run(values=0)).iteration == 3
    # A third one that says `load` goes on from those of the run that saved there.
    third = CheckpointConfig(load=first.save, save=str(tmp_path / "c"), non_persistent=first.non_persistent)
    assert restored(third, single_run(values=0)) == 4


def test_a_save_that_some_ranks_never_published_leaves_the_one_before(tmp_path: Path) -> None:
    """Killed between the renames of two ranks: nobody has removed the older one yet."""
    saved(DP2, tmp_path)

    def half(config: CheckpointConfig, run: SmallRun) -> None:
        local.local_folder.prune = lambda *_, **__: None  # type: ignore[attr-defined]
        run.save_non_persistent(config, 6)

    on_ranks(half, DP2, tmp_path)
    (late,) = (tmp_path / "node-1").rglob("iter_0000006-*")
    late.rename(late.with_name(f".{late.name}"))
    assert on_ranks(restored, DP2, tmp_path) == [4, 4]


def test_a_disk_that_fills_up_ends_the_save_on_all_ranks_and_spares_the_one_before(tmp_path: Path) -> None:
    copies = {"replication_jump": 1}
    saved(DP2, tmp_path, **copies)

    class Full(ItemFile):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device", "part")

    def fails(config: CheckpointConfig, run: SmallRun) -> str:
        if run.mesh.rank == 1:
            replicas.ItemFile = Full  # type: ignore[misc]
        with pytest.raises(RunError) as caught:
            run.save_non_persistent(config, 6)
        return str(caught.value)

    for message in on_ranks(fails, DP2, tmp_path, **copies):
        assert message.startswith("the local checkpoint of iteration 6 could not be written: No space left on device")
    assert on_ranks(restored, DP2, tmp_path, **copies) == [4, 4]
    assert not list(tmp_path.rglob(".iter_*"))


def test_settings_that_cut_the_state_otherwise_are_refused(tmp_path: Path) -> None:
    saved(DP2, tmp_path, local_algo="atomic")

    def other(config: CheckpointConfig, run: SmallRun) -> str:
        run.optimizer = ranked_run(DP2, values=0, sharded_optimizer=False).optimizer
        with pytest.raises(InputError) as caught:
            run.load(config)
        return str(caught.value)

    for message in on_ranks(other, DP2, tmp_path, local_algo="atomic"):
        assert (
            "it fits the settings it was saved with; keep them, or remove it" in message or "not in the checkpoint" in message
        )


def test_kills_lose_no_finished_local_checkpoint(tmp_path: Path) -> None:
    config, chance, iteration = config_of(tmp_path, 0), random.Random(5), 0
    for _ in range(10):
        pid = os.fork()
        if pid == 0:
            torch.set_num_threads(1)
            logging.disable(logging.CRITICAL)
            try:
                for number in range(iteration + 1, 10**7):
                    run = single_run(values=number)
                    run.model["big"] = Shards((100_000,), torch.float32, [Chunk((0,), torch.full((100_000,), float(number)))])
                    run.save_non_persistent(config, number)
            finally:
                os._exit(1)
        while not local_folder.found(run_folder(tmp_path / "node-0", tmp_path / "save")):
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.05))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        fresh = single_run(values=0)
        fresh.model["big"] = Shards((100_000,), torch.float32, [Chunk((0,), torch.zeros(100_000))])
        found = fresh.load(config).state.iteration
        assert found >= iteration
        assert fresh.model.pop("big").chunks[0].data.eq(found).all()
        fresh.check(values=found)
        iteration = found
