"""Settings of process groups by kind: what reaches the container, and what a file may not say."""

from pathlib import Path
from typing import Any

import pytest

from primus.engine.config import CommunicatorConfig
from primus.engine.config.serialize import from_dict, to_dict

FILE = "nccl_communicator_config_path"


def test_a_file_and_the_high_priority_groups_reach_the_container(build: Any, tmp_path: Path) -> None:
    (tmp_path / "nccl.yaml").write_text("dp_cp: {min_ctas: 2, max_ctas: 4, cga_cluster_size: 0}\npp:\n  net_name: Socket\n")
    built = build({FILE: "nccl.yaml", "high_priority_stream_groups": ["tp", "dp_cp"]})
    assert built.config.dist.communicators == (
        CommunicatorConfig(group="tp", is_high_priority_stream=True),
        CommunicatorConfig(group="dp_cp", min_ctas=2, max_ctas=4, cga_cluster_size=0, is_high_priority_stream=True),
        CommunicatorConfig(group="pp", net_name="Socket"),
    )
    assert from_dict(to_dict(built.config)) == built.config
    assert FILE in built.sources["dist.communicators"]
    assert "high_priority_stream_groups" in built.sources["dist.communicators"]


def test_a_file_may_be_json(build: Any, tmp_path: Path) -> None:
    (tmp_path / "nccl.json").write_text('{"tp": {"is_high_priority_stream": true, "max_ctas": 8}}')
    (found,) = build({FILE: "nccl.json"}).config.dist.communicators
    assert found == CommunicatorConfig(group="tp", max_ctas=8, is_high_priority_stream=True)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("dp_pc: {max_ctas: 4}", "nccl.yaml:1: 'dp_pc' is no kind of group. Did you mean dp_cp"),
        ("tp:\n  max_cta: 4", "nccl.yaml:2: tp has no setting 'max_cta'. Did you mean max_ctas"),
        ("tp:\n  max_ctas: many", "nccl.yaml:2: max_ctas of tp is 'many': use a whole number from 1 on"),
        ("tp:\n  max_ctas: true", "nccl.yaml:2: max_ctas of tp is True: use a whole number from 1 on"),
        ("tp:\n  min_ctas: 0", "nccl.yaml:2: min_ctas of tp is 0: use a whole number from 1 on"),
        ("tp:\n  cga_cluster_size: 9", "nccl.yaml:2: cga_cluster_size of tp is 9: use a whole number from 0 to 8"),
        ("tp:\n  net_name: carrier", "nccl.yaml:2: net_name of tp is 'carrier': use IB or Socket"),
        ("tp:\n  is_high_priority_stream: 1", "nccl.yaml:2: is_high_priority_stream of tp is 1: say true or false"),
        ("tp: {min_ctas: 4, max_ctas: 2}", "nccl.yaml:1: tp has min_ctas 4 above max_ctas 2"),
        ("tp: 4", "nccl.yaml:1: tp needs a map of settings, such as {max_ctas: 16}"),
        ("tp: {max_ctas: [4]}", "nccl.yaml:1: max_ctas of tp is [4]: use a whole number"),
        ("- tp", "nccl.yaml:1: the file holds a list instead of a map"),
        ("tp: {", "YAML syntax error"),
        ("", "nccl.yaml: the file is empty"),
    ],
)
def test_what_a_file_says_wrong_is_named_with_its_line(problems_of: Any, tmp_path: Path, text: str, fragment: str) -> None:
    (tmp_path / "nccl.yaml").write_text(text)
    (problem,) = problems_of({FILE: "nccl.yaml"})
    assert problem.startswith("nccl_communicator_config_path nccl.yaml (exp.yaml:")
    assert fragment in problem


def test_a_missing_file_and_an_unknown_group_are_refused(problems_of: Any) -> None:
    (problem,) = problems_of({FILE: "nowhere.yaml"})
    assert "there is no such file" in problem
    (problem,) = problems_of({"high_priority_stream_groups": ["ep_dp"]})
    assert "high_priority_stream_groups" in problem
    assert "'ep_dp' is no kind of group. Did you mean" in problem or "Known are" in problem


def test_other_libraries_for_pipelines_are_refused(problems_of: Any) -> None:
    (problem,) = problems_of({"pipeline_model_parallel_comm_backend": "mpi"})
    assert "pipeline_model_parallel_comm_backend" in problem
    assert "nccl" in problem
    assert "ucc" in problem
