"""What a policy of overlap leaves open follows from the layout, and what the user says of a field's twin goes before it."""

from typing import Any

import pytest

from primus.backends.megatron_bridge.config_utils import load_recipe_config
from primus.backends.megatron_bridge.container import CommOverlapConfig
from primus.backends.megatron_bridge.translate.overlap import overlap_values
from primus.backends.megatron_bridge.translate.raw import Raw

BUCKET = 128 * 2**20
NOTHING = {
    "tp_comm_overlap": False,
    "overlap_p2p_comm": False,
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
    "align_param_gather": False,
}
DIVIDED = {"overlap_grad_reduce": True, "overlap_param_gather": True, "ddp_bucket_size": BUCKET}


def values(
    policy: dict[str, Any], layout: dict[str, int], *, data_ranks: int = 1, sources: dict[str, str] | None = None, **fields: Any
) -> tuple[dict[str, Any], list[str]]:
    """Return the flat values of a policy, and problems; `fields` are those of `ddp`."""
    config = load_recipe_config({"recipe": "gpt.vanilla_gpt", "flavor": "vanilla_gpt_pretrain_config"})
    config.comm_overlap = CommOverlapConfig(**policy)
    for part, given in ((config.model, layout), (config.ddp, fields)):
        for name, value in given.items():
            setattr(part, name, value)
    raw = Raw(config=config, sources=sources or {}, recipe="gpt.vanilla_gpt")
    problems: list[str] = []
    found = overlap_values(raw, data_ranks=data_ranks, problems=problems)
    return {name: value.value for name, value in found.items()}, problems


@pytest.mark.parametrize(
    ("layout", "data_ranks", "chosen"),
    [
        ({}, 1, {}),
        ({}, 2, DIVIDED),
        ({"pipeline_model_parallel_size": 2}, 1, {}),
        ({"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}, 1, {"overlap_p2p_comm": True}),
        (
            {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2},
            2,
            {**DIVIDED, "overlap_p2p_comm": True, "align_param_gather": True},
        ),
    ],
    ids=["one", "replicas", "stages", "turns", "all"],
)
def test_what_is_left_open_follows_from_the_layout(layout: dict[str, int], data_ranks: int, chosen: dict[str, Any]) -> None:
    assert values({}, layout, data_ranks=data_ranks) == ({**NOTHING, **chosen}, [])


def test_a_policy_says_it_itself() -> None:
    found, _ = values({"overlap_grad_reduce": False, "bucket_size": 7, "delay_wgrad_compute": True}, {}, data_ranks=2)
    kept = {"overlap_param_gather": True, "ddp_bucket_size": 7, "delay_wgrad_compute": True}
    assert found == {**NOTHING, **kept}


def test_products_overlap_where_sequences_are_divided() -> None:
    divided = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
    assert values({"tp_comm_overlap": True}, divided)[0]["tp_comm_overlap"]
    assert not values({"tp_comm_overlap": True}, {"tensor_model_parallel_size": 2})[0]["tp_comm_overlap"]


def test_the_users_word_for_a_twin_goes_before() -> None:
    twin = {"ddp.overlap_grad_reduce": "exp.yaml:3"}
    found, problems = values({}, {}, data_ranks=2, sources=twin, overlap_grad_reduce=False)
    assert "overlap_grad_reduce" not in found
    assert not problems
    both = {**twin, "comm_overlap.overlap_grad_reduce": "exp.yaml:4"}
    _, problems = values({"overlap_grad_reduce": True}, {}, sources=both, overlap_grad_reduce=False)
    assert len(problems) == 1
    assert "exp.yaml:4" in problems[0]
    assert values({"overlap_grad_reduce": True}, {}, sources=both, overlap_grad_reduce=True)[1] == []
