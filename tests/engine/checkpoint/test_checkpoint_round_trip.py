"""What is saved comes back, bit by bit, in both formats and into every layout that the format allows."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import layouts_of, run_ranks
from small_run import VOCAB, ranked_run, single_run, whole_tensors

from primus.engine.checkpoint import dist_format
from primus.engine.checkpoint.files import Checksums
from primus.engine.checkpoint.load import load_weights
from primus.engine.checkpoint.rng import restore_rng
from primus.engine.config import CheckpointConfig
from primus.engine.parallel.layout import Layout
from primus.engine.parallel.sharding import Chunk, Shards
from primus.errors import InputError

LAYOUTS = [*layouts_of(1), *layouts_of(2), *layouts_of(4)]
FORMATS = ["torch_dist", "torch"]


def config(folder: Path, **changes: object) -> CheckpointConfig:
    return CheckpointConfig(save=str(folder), load=str(folder), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("ckpt_format", FORMATS)
def test_one_process_restores_everything(tmp_path: Path, ckpt_format: str) -> None:
    c = config(tmp_path, ckpt_format=ckpt_format)
    folder = single_run(values=1).save(c, 12)
    fresh = single_run(values=0)
    loaded = fresh.load(c)
    fresh.check(values=1)
    assert folder == tmp_path / "iter_0000012"
    assert (loaded.state.iteration, loaded.state.consumed_train_samples) == (12, 96)
    assert loaded.optimizer_common == {"step": 12, "scheduler": {"num_steps": 96}, "loss_scaler": None}
    assert loaded.rng is not None
    assert len(loaded.report) == 1
    assert "iteration 12 and sample counters, weights, optimizer" in loaded.report[0]


def test_the_folder_is_laid_out_as_megatron_lays_it_out(tmp_path: Path) -> None:
    folder = single_run(values=1).save(config(tmp_path), 3)
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "3"
    names = {p.name for p in folder.iterdir()}
    assert names == {".metadata", "__0_0.distcp", "__0_1.distcp", "common.pt", "metadata.json", "checksums.json"}
    assert json.loads((folder / "metadata.json").read_text()) == {
        "sharded_backend": "torch_dist",
        "sharded_backend_version": 1,
        "common_backend": "torch",
        "common_backend_version": 1,
    }


def test_torch_itself_reads_the_checkpoint(tmp_path: Path) -> None:
    folder = single_run(values=1).save(config(tmp_path), 3)
    expected = dict(whole_tensors(1))
    state = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(state, checkpoint_id=folder, no_dist=True)
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_what_torch_itself_saved_is_read(tmp_path: Path) -> None:
    expected = dict(whole_tensors(1))
    with pytest.warns(UserWarning, match="single process"):
        dcp.save(dict(expected), checkpoint_id=tmp_path, no_dist=True)
    checksums = Checksums.read(tmp_path)
    run = single_run(values=0)
    dist_format.load_tensors(tmp_path, run.model | run.optimizer, dist_format.read_metadata(tmp_path, checksums), checksums)
    run.check(values=1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("ckpt_format", FORMATS)
def test_every_dtype_survives(tmp_path: Path, dtype: torch.dtype, ckpt_format: str) -> None:
    c = config(tmp_path, ckpt_format=ckpt_format)
    single_run(values=1, dtype=dtype).save(c, 1)
    fresh = single_run(values=0, dtype=dtype)
    loaded = fresh.load(c)
    fresh.check(values=1)
    assert not any("converted" in line for line in loaded.report)


def test_a_change_of_dtype_is_announced(tmp_path: Path) -> None:
    c = config(tmp_path)
    single_run(values=1).save(c, 1)
    loaded = single_run(values=0, dtype=torch.bfloat16).load(c)
    assert any("weights were converted: torch.float32 -> torch.bfloat16" in line for line in loaded.report)


def test_padding_rows_are_not_stored(tmp_path: Path) -> None:
    folder = single_run(values=1).save(config(tmp_path), 1)
    stored = dist_format.stored_tensors(dist_format.read_metadata(folder, Checksums.read(folder)))
    assert stored["embedding.word_embeddings.weight"].global_shape == (VOCAB, 4)


def _save(rank: int, layout: Layout, c: CheckpointConfig, sharded: bool) -> None:
    ranked_run(layout, 1, sharded_optimizer=sharded).save(c, 2)


def _load(rank: int, layout: Layout, c: CheckpointConfig, sharded: bool) -> list[str]:
    run = ranked_run(layout, 0, sharded_optimizer=sharded)
    loaded = run.load(c)
    run.check(values=1)
    assert loaded.optimizer_common is not None
    return loaded.report


@pytest.mark.parametrize("sharded", [False, True], ids=["whole-optimizer", "distributed-optimizer"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda at: f"tp{at.tensor}dp{at.data}")
def test_any_layout_loads_into_any_other(tmp_path: Path, layout: Layout, sharded: bool) -> None:
    c = config(tmp_path)
    run_ranks(_save, layout.world_size, layout, c, sharded)
    for other in LAYOUTS:
        run_ranks(_load, other.world_size, other, c, not sharded)
        if other == layout:
            run_ranks(_load, other.world_size, other, c, sharded)


@pytest.mark.parametrize("sharded", [False, True], ids=["whole-optimizer", "distributed-optimizer"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda at: f"tp{at.tensor}dp{at.data}")
def test_torch_format_loads_into_any_number_of_replicas(tmp_path: Path, layout: Layout, sharded: bool) -> None:
    c = config(tmp_path, ckpt_format="torch")
    run_ranks(_save, layout.world_size, layout, c, sharded)
    files = sorted(str(p.relative_to(tmp_path / "iter_0000002")) for p in (tmp_path / "iter_0000002").glob("*/*"))
    names = ["distrib_optim.pt", "model_optim_rng.pt"] if sharded and layout.data > 1 else ["model_optim_rng.pt"]
    assert files == [f"mp_rank_{tp:02d}/{name}" for tp in range(layout.tensor) for name in names]
    for other in (at for at in LAYOUTS if at.tensor == layout.tensor):
        run_ranks(_load, other.world_size, other, c, sharded)
        run_ranks(_load, other.world_size, other, c, not sharded)


def _load_refused(rank: int, layout: Layout, c: CheckpointConfig) -> str:
    with pytest.raises(InputError) as error:
        ranked_run(layout, 0, sharded_optimizer=False).load(c)
    return str(error.value)


def test_torch_format_refuses_another_tensor_size_on_every_rank(tmp_path: Path) -> None:
    c = config(tmp_path, ckpt_format="torch")
    single_run(values=1).save(c, 2)
    texts = run_ranks(_load_refused, 2, Layout(world_size=2, tensor=2), c)
    said = "Keep the sizes; a run that goes on from it with them and saves in ckpt_format torch_dist makes one that loads"
    assert all("tensor_model_parallel_size 1" in text and said in text for text in texts)


def _bytes_per_rank(rank: int, c: CheckpointConfig) -> None:
    ranked_run(Layout(world_size=2), 1, sharded_optimizer=False).save(c, 2)


def test_fully_parallel_save_shares_the_writing(tmp_path: Path) -> None:
    sizes = {}
    for spread in (True, False):
        c = config(tmp_path / str(spread), fully_parallel_save=spread)
        run_ranks(_bytes_per_rank, 2, c)
        folder = tmp_path / str(spread) / "iter_0000002"
        sizes[spread] = [sum(p.stat().st_size for p in folder.glob(f"__{rank}_*")) for rank in range(2)]
    assert max(sizes[True]) < 1.3 * min(sizes[True])
    assert sizes[False][1] < sizes[False][0]


@pytest.mark.parametrize("ckpt_format", FORMATS)
def test_weights_alone_load_in_either_format(tmp_path: Path, ckpt_format: str) -> None:
    folder = single_run(values=1).save(config(tmp_path, ckpt_format=ckpt_format), 2)
    fresh = single_run(values=0)
    load_weights(folder, fresh.model, mesh=fresh.mesh)
    fresh.check(values=1, optimizer=False)
    assert not any(chunk.data.any() for shards in fresh.optimizer.values() for chunk in shards.chunks)


def test_the_other_format_needs_leave(tmp_path: Path) -> None:
    single_run(values=1).save(config(tmp_path, ckpt_format="torch"), 2)
    with pytest.raises(
        InputError, match="is of ckpt_format torch, the run says ckpt_format torch_dist; set ckpt_format: torch"
    ):
        single_run(values=0).load(config(tmp_path))
    fresh = single_run(values=0)
    fresh.load(config(tmp_path, auto_detect_ckpt_format=True))
    fresh.check(values=1)


@pytest.mark.parametrize("ckpt_format", FORMATS)
def test_what_is_not_saved_is_not_on_disk(tmp_path: Path, ckpt_format: str) -> None:
    c = config(tmp_path, ckpt_format=ckpt_format, no_save_optim=True, no_save_rng=True)
    folder = single_run(values=1).save(c, 2)
    assert not any(b"exp_avg" in p.read_bytes() or b"rng_tracker" in p.read_bytes() for p in folder.rglob("*") if p.is_file())
    fresh = single_run(values=0)
    loaded = fresh.load(c)
    fresh.check(values=1, optimizer=False)
    assert loaded.optimizer_common is None
    assert loaded.rng is None
    assert loaded.state.iteration == 2
    (line,) = [line for line in loaded.report if line.startswith("NOT")]
    assert "no_save_optim" in line
    assert "no_save_rng" in line


def test_what_is_not_loaded_stays_fresh_and_is_said(tmp_path: Path) -> None:
    single_run(values=1).save(config(tmp_path), 2)
    fresh = single_run(values=0)
    loaded = fresh.load(config(tmp_path, no_load_optim=True, no_load_rng=True))
    fresh.check(values=1, optimizer=False)
    assert not any(chunk.data.any() for shards in fresh.optimizer.values() for chunk in shards.chunks)
    assert (loaded.optimizer_common, loaded.rng, loaded.state.iteration) == (None, None, 2)
    assert "(no_load_optim)" in loaded.report[1]
    assert "(no_load_rng)" in loaded.report[1]


def test_finetune_says_loudly_what_it_leaves(tmp_path: Path) -> None:
    single_run(values=1).save(config(tmp_path), 2)
    loaded = single_run(values=0).load(config(tmp_path, finetune=True))
    assert loaded.state.iteration == 0
    assert loaded.report[1].startswith("NOT restored")
    for part in ("iteration and sample counters (finetune)", "optimizer and learning-rate schedule", "random states"):
        assert part in loaded.report[1]


def test_main_params_alone_can_be_loaded(tmp_path: Path) -> None:
    def with_main(values: int) -> dict[str, Shards]:
        name = "optimizer.state.main_param.decoder.final_layernorm.weight"
        return {name: Shards((4,), torch.float32, [Chunk((0,), torch.full((4,), float(values)))])}

    saved = single_run(values=1)
    saved.optimizer |= with_main(5)
    saved.save(config(tmp_path), 2)
    fresh = single_run(values=0)
    fresh.optimizer |= (main := with_main(0))
    loaded = fresh.load(config(tmp_path, no_load_optim=True, load_main_params_from_ckpt=True))
    assert loaded.main_params
    assert next(iter(main.values())).chunks[0].data.tolist() == [5.0] * 4
    assert not fresh.optimizer["optimizer.state.exp_avg.decoder.final_layernorm.weight"].chunks[0].data.any()


def _draw(run_rank: int, layout: Layout, c: CheckpointConfig, save: bool) -> tuple[list[float], list[str]]:
    run = ranked_run(layout, 1, sharded_optimizer=False)
    if save:
        random.seed(run_rank)
        torch.rand(3 + run_rank)
        run.save(c, 2)
    else:
        loaded = run.load(c)
        if loaded.rng is not None:
            restore_rng(dict(loaded.rng), run.streams, run.mesh.device)
            return _numbers(run.streams), loaded.report
        return [], loaded.report
    return _numbers(run.streams), []


def _numbers(streams: object) -> list[float]:
    with streams.fork("model-parallel"):  # type: ignore[attr-defined]
        forked = torch.rand(1).item()
    return [random.random(), float(np.random.rand()), torch.rand(1).item(), forked]


@pytest.mark.parametrize("ckpt_format", FORMATS)
def test_random_states_go_on_rank_by_rank(tmp_path: Path, ckpt_format: str) -> None:
    c = config(tmp_path, ckpt_format=ckpt_format)
    layout = Layout(world_size=2)
    drawn = [numbers for numbers, _ in run_ranks(_draw, 2, layout, c, True)]
    again = [numbers for numbers, _ in run_ranks(_draw, 2, layout, c, False)]
    assert again == drawn
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("ckpt_format", FORMATS)
def test_more_replicas_go_on_from_the_first_ones_random_states(tmp_path: Path, ckpt_format: str) -> None:
    c = config(tmp_path, ckpt_format=ckpt_format)
    (drawn, _), _ = run_ranks(_draw, 2, Layout(world_size=2), c, True)
    again = run_ranks(_draw, 4, Layout(world_size=4), c, False)
    assert [numbers for numbers, _ in again] == [drawn] * 4


def test_random_states_of_another_tensor_size_are_left_and_said(tmp_path: Path) -> None:
    c = config(tmp_path)
    run_ranks(_draw, 2, Layout(world_size=2, tensor=2), c, True)
    ((numbers, report),) = run_ranks(_draw, 1, Layout(world_size=1), c, False)
    assert numbers == []
    assert any("RNG state will be ignored" in line for line in report)


def test_saving_an_iteration_again_replaces_it(tmp_path: Path) -> None:
    c = config(tmp_path)
    single_run(values=1).save(c, 2)
    single_run(values=2).save(c, 2)
    fresh = single_run(values=0)
    fresh.load(c)
    fresh.check(values=2)
    assert {p.name for p in tmp_path.iterdir()} == {"iter_0000002", "latest_checkpointed_iteration.txt"}


def test_six_saves_under_retention_leave_multiples_and_the_newest(tmp_path: Path) -> None:
    c = config(tmp_path, save_retain_interval=3)
    (tmp_path / "iter_notes").mkdir()
    for iteration in range(1, 8):
        single_run(values=iteration).save(c, iteration)
    assert sorted(p.name for p in tmp_path.glob("iter_*")) == ["iter_0000003", "iter_0000006", "iter_0000007", "iter_notes"]
    fresh = single_run(values=0)
    assert fresh.load(c).state.iteration == 7
    fresh.check(values=7)
