"""What the checkpoint lacks, and what the run has no place for; each strictness does what its name says."""

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from small_run import MODEL_CONFIG, SmallRun, ranked_run, single_run

from primus.engine.checkpoint.compare import architecture_problems, changes, difference, summary
from primus.engine.config import CheckpointConfig
from primus.engine.parallel.layout import Layout
from primus.engine.parallel.sharding import Chunk, Shards
from primus.errors import InputError

LAYER_4 = "decoder.layers.4.mlp.linear_fc2.weight"
EXTRA = "decoder.layers.0.mlp.linear_fc2.bias"


def config(folder: Path, **changes: object) -> CheckpointConfig:
    return CheckpointConfig(save=str(folder), load=str(folder), **changes)  # type: ignore[arg-type]


def ones(*shape: int) -> Shards:
    return Shards(shape, torch.float32, [Chunk((0,) * len(shape), torch.ones(shape))])


def lacking(folder: Path) -> SmallRun:
    """Save a plain run, return one that wants another layer."""
    single_run(values=1).save(config(folder), 2)
    run = single_run(values=0)
    run.model[LAYER_4] = ones(4, 8)
    return run


def surplus(folder: Path) -> SmallRun:
    """Save a run with a tensor more than the one that is returned."""
    saved = single_run(values=1)
    saved.model[EXTRA] = ones(4)
    saved.save(config(folder), 2)
    return single_run(values=0)


@pytest.mark.parametrize("strictness", ["assume_ok_unexpected", "raise_unexpected", "raise_all"])
def test_missing_weights_are_fatal_and_listed(tmp_path: Path, strictness: str) -> None:
    with pytest.raises(InputError, match=r"not in the checkpoint .*: decoder\.layers\.4\.mlp\.linear_fc2\.weight"):
        lacking(tmp_path).load(config(tmp_path, strictness=strictness))


def test_what_has_changed_since_is_told_and_the_rest_is_not() -> None:
    saved = {"model": {"seq_length": 32, "attention": {"dropout": 0.0}}, "rng": {"seed": 7}, "logger": {"level": "INFO"}}
    ours = {
        "model": {"seq_length": 64, "attention": {"dropout": 0.1}, "new": 1},
        "rng": {"seed": 7},
        "logger": {"level": "DEBUG"},
    }
    assert changes(saved, ours) == ["model.seq_length: 32 -> 64", "model.attention.dropout: 0.0 -> 0.1"]
    packed = {"dataset": {"sft": {"packing": {"size": 8, "file": None}}}}
    plain = {"dataset": {"sft": {"packing": None}}}
    assert changes(plain, packed) == ["dataset.sft.packing: None -> {'size': 8}"]
    assert changes(packed, plain) == ["dataset.sft.packing: {'size': 8} -> None"]


@pytest.mark.parametrize("strictness", ["log_unexpected", "log_all", "return_unexpected", "return_all", "ignore_all"])
def test_other_strictness_goes_on_with_what_is_there(tmp_path: Path, strictness: str) -> None:
    run = lacking(tmp_path)
    loaded = run.load(config(tmp_path, strictness=strictness))
    assert run.model.pop(LAYER_4).chunks[0].data.eq(1).all()
    run.check(values=1)
    said = any("decoder.layers.4" in line for line in loaded.report)
    assert said == (strictness != "ignore_all")


def test_only_raise_all_minds_what_the_run_has_no_place_for(tmp_path: Path) -> None:
    run = surplus(tmp_path)
    with pytest.raises(InputError, match=rf"in the checkpoint .* and not in the run: {EXTRA}"):
        run.load(config(tmp_path, strictness="raise_all"))
    for strictness in ("assume_ok_unexpected", "raise_unexpected", "log_unexpected", "log_all", "return_all", "ignore_all"):
        loaded = run.load(config(tmp_path, strictness=strictness))
        run.check(values=1)
        says = strictness in ("assume_ok_unexpected", "log_all", "return_all")
        assert any("in the checkpoint only" in line for line in loaded.report) == says


def test_optimizer_state_that_nobody_asks_for_is_no_surplus(tmp_path: Path) -> None:
    single_run(values=1).save(config(tmp_path), 2)
    single_run(values=0).load(config(tmp_path, finetune=True, strictness="raise_all"))


def test_another_shape_is_fatal_under_every_strictness(tmp_path: Path) -> None:
    single_run(values=1).save(config(tmp_path), 2)
    run = single_run(values=0)
    run.model["decoder.final_layernorm.weight"] = ones(5)
    with pytest.raises(InputError, match=r"final_layernorm\.weight has shape \[4\] in the checkpoint and \[5\] in the run"):
        run.load(config(tmp_path, strictness="ignore_all"))


def test_another_depth_lists_both_values_and_the_missing_layers(tmp_path: Path) -> None:
    run = lacking(tmp_path)
    with pytest.raises(InputError) as error:
        run.load(config(tmp_path), container={**MODEL_CONFIG, "num_layers": 5})
    text = str(error.value)
    assert "num_layers: the checkpoint was saved with 1, the run says 5" in text
    assert LAYER_4 in text
    assert "finetune: true" in text


def test_a_change_without_change_of_shape_is_found(tmp_path: Path) -> None:
    single_run(values=1).save(config(tmp_path), 2)
    changed: dict[str, Any] = {**MODEL_CONFIG, "position": {"type": "none"}}
    with pytest.raises(InputError, match="position_embedding_type: the checkpoint was saved with rope, the run says none"):
        single_run(values=0).load(config(tmp_path), container=changed)
    single_run(values=0).load(config(tmp_path, finetune=True), container=changed)


def test_every_compared_field_exists_in_the_model_config() -> None:
    assert architecture_problems(MODEL_CONFIG, MODEL_CONFIG) == []
    assert len(architecture_problems(MODEL_CONFIG, {})) == 9


def test_difference_names_both_sides() -> None:
    found = difference({"a": (1,), "b": (2,)}, {"b": (2,), "c": (3,), "optimizer.state.x": (1,)}, with_optimizer=False)
    assert (found.not_stored, found.not_wanted, found.unlike) == (("a",), ("c",), ())


def test_summary_names_what_layers_have_and_ends() -> None:
    assert summary([f"decoder.layers.4.x{i}" for i in range(7)] + ["output_layer.weight"]) == (
        "decoder.layers.4.* (7 tensors: x0, x1, x2, x3, x4 and 2 more), output_layer.weight"
    )
    assert summary([f"decoder.layers.{i}.{x}" for x in "qk" for i in (0, 2)]) == "decoder.layers.0|2.* (4 tensors: q, k)"
    assert summary([f"decoder.layers.{i}.q" for i in range(9)]) == "decoder.layers.0-8.* (9 tensors: q)"
    assert summary([f"t{i}" for i in range(20)]).endswith("t11 and 8 more")


def _load_lacking(rank: int, c: CheckpointConfig) -> str:
    run = ranked_run(Layout(world_size=2, tensor=2), 0, sharded_optimizer=False)
    if rank == 1:
        run.model[LAYER_4] = ones(4, 8)
    with pytest.raises(InputError) as error:
        run.load(c)
    return str(error.value)


def test_what_one_rank_lacks_stops_all_ranks(tmp_path: Path) -> None:
    single_run(values=1).save(config(tmp_path), 2)
    texts = run_ranks(_load_lacking, 2, config(tmp_path))
    assert all(LAYER_4 in text for text in texts)
