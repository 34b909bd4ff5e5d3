"""Keys of tensor-parallel overlap: the form that each product gets, what is refused, and what a run says is idle."""

from pathlib import Path
from typing import Any

import pytest

from primus.engine.config.tp_overlap import BULK, ColumnOverlap, ProductOverlap, RowOverlap, TPOverlapConfig

ON: dict[str, Any] = {
    "tensor_model_parallel_size": 2,
    "sequence_parallel": True,
    "tp_comm_overlap": True,
    "deterministic_mode": False,
}
RING = ProductOverlap(method="ring_exchange")


def piped(num_splits: int) -> ProductOverlap:
    return ProductOverlap(method="pipeline", num_splits=num_splits)


def layer(column: ColumnOverlap, row: RowOverlap, **other: Any) -> TPOverlapConfig:
    return TPOverlapConfig(**{"qkv": column, "proj": row, "fc1": column, "fc2": row, **other})


ALL = layer(ColumnOverlap(fprop=RING), RowOverlap(fprop=piped(4), dgrad=RING))
CASES: list[tuple[str, dict[str, Any], TPOverlapConfig]] = [
    ("off", {"tp_comm_overlap": False}, TPOverlapConfig()),
    ("on", {}, ALL),
    ("no-gathers", {"tp_comm_overlap_ag": False}, layer(ColumnOverlap(), RowOverlap(fprop=piped(4)))),
    ("no-gathers-by-the-older-name", {"tp_comm_split_ag": False}, layer(ColumnOverlap(), RowOverlap(fprop=piped(4)))),
    ("no-scatters", {"tp_comm_overlap_rs": False}, layer(ColumnOverlap(fprop=RING), RowOverlap(dgrad=RING))),
    ("no-scatters-by-the-older-name", {"tp_comm_split_rs": False}, layer(ColumnOverlap(fprop=RING), RowOverlap(dgrad=RING))),
    (
        "no-bulk",
        {"tp_comm_bulk_wgrad": False, "tp_comm_bulk_dgrad": False},
        layer(ColumnOverlap(fprop=RING, dgrad=None, wgrad=None), RowOverlap(fprop=piped(4), dgrad=RING)),
    ),
    ("no-bulk-dgrad", {"tp_comm_bulk_dgrad": False}, layer(ColumnOverlap(fprop=RING, dgrad=None), ALL.proj)),
    ("no-bulk-wgrad", {"tp_comm_bulk_wgrad": False}, layer(ColumnOverlap(fprop=RING, wgrad=None), ALL.proj)),
    (
        "dgrad",
        {"tp_comm_overlap_rs_dgrad": True, "tp_comm_bulk_dgrad": False},
        layer(ColumnOverlap(fprop=RING, dgrad=piped(4), wgrad=None), ALL.proj),
    ),
    (
        "fewer-rows-than-pieces",
        {"seq_length": 4, "max_position_embeddings": 4},
        layer(ColumnOverlap(fprop=RING), RowOverlap(fprop=piped(2), dgrad=RING)),
    ),
    (
        "map",
        {"tp_comm_overlap_cfg": {"proj_fprop": {"method": "ring_exchange"}, "fc2_fprop": {"num_splits": 8}}},
        layer(ALL.qkv, ALL.proj, proj=RowOverlap(fprop=RING, dgrad=RING), fc2=RowOverlap(fprop=piped(8), dgrad=RING)),
    ),
    (
        "map-as-text",
        {"tp_comm_overlap_cfg": '{"fc1_dgrad": {"method": "ring_exchange"}}', "tp_comm_overlap_rs_dgrad": True},
        layer(
            ColumnOverlap(fprop=RING, dgrad=piped(4), wgrad=None),
            ALL.proj,
            fc1=ColumnOverlap(fprop=RING, dgrad=RING, wgrad=None),
        ),
    ),
]


@pytest.mark.parametrize(("keys", "expected"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_keys_choose_the_form_of_each_product(build: Any, keys: dict[str, Any], expected: TPOverlapConfig) -> None:
    assert build({**ON, **keys}, world_size=2).config.model.tp_overlap == expected


FILE = """
qkv_fprop: {method: ring_exchange, aggregate: 0}
proj_fprop: {method: pipeline, num_sm: 32, cga_size: 2, num_splits: 2, set_sm_margin: 1}
fc1_dgrad: {method: bulk, num_sm: 4, cga_size: 2, set_sm_margin: 0}
"""


def test_a_file_is_read_and_says_what_of_it_is_idle(build: Any, tmp_path: Path) -> None:
    (tmp_path / "ub.yaml").write_text(FILE)
    built = build({**ON, "tp_comm_overlap_cfg": "ub.yaml", "tp_comm_overlap_ag": False}, world_size=2)
    assert built.config.model.tp_overlap.proj == RowOverlap(fprop=piped(2))
    assert built.config.model.tp_overlap.fc1 == ColumnOverlap(dgrad=BULK, wgrad=BULK)
    assert built.origins[str(tmp_path / "ub.yaml")].startswith("tp_comm_overlap_cfg, exp.yaml:")
    about = [line.partition("): ")[2] for line in built.notices if line.startswith("tp_comm_overlap_cfg ub.yaml (exp.yaml:")]
    assert about[0].startswith("qkv_fprop has no effect: tp_comm_overlap_ag false (exp.yaml:")
    assert about[1].startswith("cga_size, num_sm, set_sm_margin have no effect: pieces travel through")
    assert len(about) == 2
    assert "(tp_comm_overlap_cfg)" in built.sources["model.tp_overlap.proj.fprop"]


MAP = "tp_comm_overlap_cfg"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "alone",
        {"sequence_parallel": False},
        ") needs sequence_parallel: true and tensor_model_parallel_size of 2 or more (they are",
    ),
    ("deterministic", {"deterministic_mode": True}, "exclude each other: set one of them to false."),
    ("no-file", {MAP: "none.yaml"}, "none.yaml cannot be read: No such file or directory."),
    ("no-map", {MAP: "{a"}, "it is not YAML: "),
    ("product", {MAP: {"qkv_forward": {}}}, "qkv_forward is no product. Did you mean qkv_"),
    ("alone-wgrad", {MAP: {"proj_wgrad": {}}}, "proj_wgrad has no communication of its own to run beside: leave it out."),
    ("no-fields", {MAP: {"qkv_fprop": "bulk"}}, "qkv_fprop must be a map with method and num_splits, not bulk."),
    ("field", {MAP: {"qkv_fprop": {"num_split": 2}}}, "qkv_fprop: num_split is no field. Did you mean num_splits"),
    ("method", {MAP: {"qkv_fprop": {"method": "pipeline"}}}, "qkv_fprop: method pipeline must be ring_exchange."),
    ("count", {MAP: {"fc2_fprop": {"num_splits": 0}}}, "fc2_fprop: num_splits 0 must be an integer of at least 1."),
    ("switch", {MAP: {"fc2_fprop": {"set_sm_margin": 2}}}, "set_sm_margin 2 must be true or false (1 or 0)."),
    (
        "ring-pieces",
        {MAP: {"fc2_fprop": {"method": "ring_exchange", "num_splits": 4}}},
        "num_splits goes with method: pipeline, but ring_exchange has a piece for each rank: leave it out.",
    ),
    ("bulk-pieces", {MAP: {"fc1_wgrad": {"num_splits": 4}}}, "but bulk is one piece: leave it out."),
    ("aggregate", {MAP: {"qkv_fprop": {"aggregate": 1}}}, "aggregate is not implemented yet: leave it out."),
    ("too-many-pieces", {MAP: {"fc2_fprop": {"num_splits": 17}}}, "leaves 16 positions to each rank: use that many at most."),
    (
        "dgrad-in-pieces",
        {MAP: {"qkv_dgrad": {"method": "pipeline"}}},
        "scatters the input gradient beside the product itself, but tp_comm_overlap_rs_dgrad false",
    ),
    (
        "dgrad-in-bulk",
        {MAP: {"qkv_dgrad": {"method": "bulk"}}, "tp_comm_overlap_rs_dgrad": True},
        "set it to false, or leave qkv_dgrad out.",
    ),
    (
        "wgrad-in-bulk",
        {MAP: {"qkv_wgrad": {"method": "bulk"}}, "tp_comm_overlap_rs_dgrad": True},
        "qkv_wgrad has nothing beside it under tp_comm_overlap_rs_dgrad true",
    ),
]


@pytest.mark.parametrize(("keys", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_cannot_be_done_is_refused(problems_of: Any, keys: dict[str, Any], message: str) -> None:
    (problem,) = problems_of({**ON, **keys}, world_size=2)
    assert message in problem
    key = MAP if MAP in keys else "tp_comm_overlap"
    assert problem.startswith(f"{key} ")


def test_one_rank_has_nothing_to_overlap(problems_of: Any) -> None:
    (problem,) = problems_of({**ON, "tensor_model_parallel_size": 1})
    assert "sequence_parallel false (derived: tensor_model_parallel_size is 1)" in problem


def test_the_bootstrap_backend_has_no_buffers_to_agree_on(build: Any) -> None:
    notices = build({"tp_comm_bootstrap_backend": "gloo"}).notices
    assert any("tp_comm_bootstrap_backend" in line and "no user buffers" in line for line in notices)
