"""What prediction layers ask of the other keys."""

from typing import Any

import pytest

PAIR: dict[str, Any] = {"pipeline_model_parallel_size": 2}


@pytest.mark.parametrize(
    ("keys", "ranks", "message"),
    [
        ({"num_seq_splits": 2, "mtp_num_layers": 1, **PAIR}, 2, "read tokens of the next slice; set num_seq_splits: 1."),
        ({"defer_embedding_wgrad_compute": True, **PAIR}, 2, "set defer_embedding_wgrad_compute: false."),
        ({"position_embedding_type": "learned_absolute"}, 1, "choose rope, yarn or none."),
        ({"mtp_num_layers": 32}, 1, "mtp_num_layers 32 (exp.yaml:"),
    ],
    ids=["slices", "postponed", "table", "length"],
)
def test_what_does_not_go_with_prediction_layers_is_refused(
    problems_of: Any, keys: dict[str, Any], ranks: int, message: str
) -> None:
    problems = problems_of({"mtp_num_layers": 1, **keys}, world_size=ranks)
    assert [problem for problem in problems if message in problem and "mtp_num_layers" in problem] != []


def test_prediction_layers_are_recomputed_by_number(build: Any, problems_of: Any) -> None:
    keys: dict[str, Any] = {"num_layers": 2, "mtp_num_layers": 1, "recompute_granularity": "full", "recompute_layer_ids": [2]}
    assert build(keys).config.model.recompute.layer_ids == (2,)
    (problem,) = problems_of({**keys, "recompute_layer_ids": [3]})
    assert "must list layers from 0 to 2" in problem


def test_keys_reach_the_model(build: Any) -> None:
    mtp = build({"mtp_num_layers": 2, "mtp_loss_scaling_factor": 0.3}).config.model.mtp
    assert (mtp.num_layers, mtp.loss_scaling_factor) == (2, 0.3)
    assert build({"mtp_num_layers": 0}).config.model.mtp == build().config.model.mtp


@pytest.mark.parametrize("layout", ["Ett|ttmL", "Ett|ttL", "Ett|ttm|L"])
def test_a_layout_may_name_prediction_layers_on_the_last_stage(build: Any, problems_of: Any, layout: str) -> None:
    keys = {"mtp_num_layers": 1, "pipeline_model_parallel_layout": layout, **PAIR}
    if layout.endswith("mL") or "m" not in layout:
        assert build(keys, world_size=2).config.model.pipeline.layers_per_stage == (2, 2)
    else:
        assert "all of them run on the last stage" in problems_of(keys, world_size=2)[0]
