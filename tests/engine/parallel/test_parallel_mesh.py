"""This rank's groups: from a configuration to process groups that really connect the right ranks."""

import time
from typing import Any

import pytest
import torch
from ranks import layouts_of, run_ranks

from primus.engine.config import DistConfig, ParallelConfig
from primus.engine.parallel.collectives import all_gather_object
from primus.engine.parallel.layout import Layout
from primus.engine.parallel.mesh import Group, Mesh, build_mesh, single_mesh
from primus.errors import ConfigError

CPU = torch.device("cpu")
AXES = ("world", "tp", "cp", "dp", "dp_cp", "pp", "mp")


def mesh_of(layout: Layout, agreed: str = "") -> Mesh:
    parallel = ParallelConfig(
        tensor_model_parallel_size=layout.tensor,
        context_parallel_size=layout.context,
        pipeline_model_parallel_size=layout.pipeline,
    )
    return build_mesh(parallel, DistConfig(timeout_minutes=1), CPU, agreed={"configuration": agreed})


def members(rank: int, layout: Layout) -> dict[str, tuple[tuple[int, ...], list[int]]]:
    """Each group's declared ranks, and the ranks that answer."""
    mesh = mesh_of(layout)
    groups: dict[str, Group] = {axis: getattr(mesh, axis) for axis in AXES}
    assert all(group.ranks[group.index] == rank for group in groups.values())
    return {axis: (group.ranks, all_gather_object(rank, group)) for axis, group in groups.items()}


@pytest.mark.parametrize(
    "layout",
    [
        *layouts_of(4),
        Layout(world_size=4, context=2),
        Layout(world_size=4, pipeline=2),
        Layout(world_size=8, tensor=2, pipeline=2),
    ],
    ids=lambda layout: f"tp{layout.tensor}-cp{layout.context}-pp{layout.pipeline}-of-{layout.world_size}",
)
def test_each_group_connects_the_ranks_of_the_layout(layout: Layout) -> None:
    axes = {"tp": ("tp",), "cp": ("cp",), "dp": ("dp",), "dp_cp": ("dp", "cp"), "pp": ("pp",), "mp": ("tp", "pp")}
    for rank, groups in enumerate(run_ranks(members, layout.world_size, layout)):
        assert groups["world"][0] == tuple(range(layout.world_size))
        for axis, tokens in axes.items():
            expected = next(ranks for ranks in layout.groups(*tokens) if rank in ranks)  # type: ignore[arg-type]
            assert groups[axis] == (expected, list(expected)), axis


def equal_groups_are_one(rank: int) -> None:
    mesh = mesh_of(Layout(world_size=2))
    assert mesh.dp is mesh.dp_cp is mesh.world
    assert mesh.tp.handle is None


def test_axes_with_equal_ranks_share_a_process_group() -> None:
    run_ranks(equal_groups_are_one, 2)


def disagree(rank: int, axis: str | None) -> tuple[str, float]:
    started = time.monotonic()
    layout = Layout(world_size=4, **({axis: 2} if axis and rank == 2 else {}))
    with pytest.raises(ConfigError) as caught:
        mesh_of(layout, agreed=f"config\n{layout}" if axis else f"config {rank == 2}")
    return str(caught.value), time.monotonic() - started


@pytest.mark.parametrize("axis", [None, "tensor", "pipeline", "context"])
def test_a_rank_started_with_another_configuration_is_named_on_all_ranks_at_once(axis: str | None) -> None:
    """A configuration of one line is shown as well."""
    for message, seconds in run_ranks(disagree, 4, axis):
        shown = "" if axis else ": config True on rank 2, config False on rank 0"
        assert message == f"rank(s) 2 of 4 have another configuration than rank 0{shown}"
        assert seconds < 10


def test_world_that_does_not_fit_is_an_error_before_anybody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match="3 processes cannot be divided into groups of 2"):
        build_mesh(ParallelConfig(tensor_model_parallel_size=2), DistConfig(), CPU)


def test_single_process_has_groups_of_one_without_process_groups() -> None:
    mesh = single_mesh()
    assert all(getattr(mesh, axis).size == 1 and getattr(mesh, axis).handle is None for axis in AXES)
    assert mesh.layout.data == 1


def test_the_process_group_is_not_bound_to_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound, all messages of a group would share one communicator and one order."""
    seen: list[dict[str, Any]] = []

    def joined(backend: str, **keywords: Any) -> None:
        seen.append({"backend": backend, **keywords})
        raise InterruptedError

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "init_process_group", joined)
    with pytest.raises(InterruptedError):
        build_mesh(ParallelConfig(), DistConfig(), torch.device("cuda", 0))
    assert seen[0]["backend"] == "nccl"
    assert "device_id" not in seen[0]
