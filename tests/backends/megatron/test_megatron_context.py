"""Context-parallel keys: what reaches the container, and what is refused."""

from typing import Any

import pytest


def test_ways_and_levels_reach_the_container(build: Any) -> None:
    keys = {"context_parallel_size": 4, "cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": [2, 2]}
    parallel = build(keys, world_size=4).config.model.parallel
    assert (parallel.cp_comm_type, parallel.hierarchical_context_parallel_sizes) == (("a2a+p2p",), (2, 2))
    listed = build({"context_parallel_size": 2, "cp_comm_type": ["all_gather", "p2p", "a2a", "p2p"]}, world_size=2)
    assert listed.config.model.parallel.cp_comm_type == ("allgather", "p2p", "a2a", "p2p")
    alone = build({"hierarchical_context_parallel_sizes": [2, 2]}).config.model.parallel
    assert alone.hierarchical_context_parallel_sizes is None


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("length", {"seq_length": 30}, "must be a multiple of twice context_parallel_size 2"),
    (
        "length-tensor",
        {"seq_length": 28, "tensor_model_parallel_size": 4, "sequence_parallel": True},
        "leaves 14 positions, which tensor_model_parallel_size 4",
    ),
    ("list", {"cp_comm_type": ["p2p", "a2a"]}, "one for each of the 4 layers"),
    ("no-levels", {"cp_comm_type": "a2a+p2p"}, "needs hierarchical_context_parallel_sizes"),
    ("product", {"hierarchical_context_parallel_sizes": [2, 2]}, "whose product is context_parallel_size 2"),
    ("three", {"hierarchical_context_parallel_sizes": [2, 1, 1]}, "must be two numbers"),
    ("heads", {"cp_comm_type": "a2a", "num_attention_heads": 1, "kv_channels": 32}, "num_attention_heads 1 must be a multiple"),
    (
        "groups",
        {"cp_comm_type": "a2a", "group_query_attention": True, "num_query_groups": 1},
        "num_query_groups 1 must be a multiple of tensor_model_parallel_size 1 x 2",
    ),
    ("scaling", {"apply_query_key_layer_scaling": True, "fp16": True}, "not implemented yet with context_parallel_size 2"),
]


@pytest.mark.parametrize(("keys", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused(problems_of: Any, keys: dict[str, Any], message: str) -> None:
    world_size = 2 * keys.get("tensor_model_parallel_size", 1)
    problems = problems_of({"context_parallel_size": 2, **keys}, world_size=world_size)
    assert any(message in problem for problem in problems), problems
