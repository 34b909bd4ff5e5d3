"""Groups by kind: which library and which of NCCL's settings each is made with, seen without a GPU."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from primus.engine.config import CommunicatorConfig, DistConfig, ParallelConfig
from primus.engine.parallel import communicator
from primus.engine.parallel.communicator import Communicator, communicator_of, nccl_options, without_effect
from primus.engine.parallel.mesh import Mesh, build_mesh
from primus.errors import InputError

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
MINUTE = timedelta(minutes=1)
SLOW = CommunicatorConfig(group="dp_cp", min_ctas=2, max_ctas=4, cga_cluster_size=0, net_name="IB")
URGENT = CommunicatorConfig(group="tp", is_high_priority_stream=True)

Made = list[tuple[tuple[int, ...], dict[str, Any]]]


def made_groups(parallel: ParallelConfig, config: DistConfig, device: torch.device) -> tuple[Mesh, Made]:
    """Build the mesh of a rank whose device is only named; groups are gloo's, and what was asked for is noted."""
    made: Made = []
    new_group: Callable[..., Any] = dist.new_group

    def note(ranks: list[int], *, use_local_synchronization: bool, timeout: timedelta, **arguments: Any) -> Any:
        made.append((tuple(ranks), arguments))
        return new_group(ranks, use_local_synchronization=use_local_synchronization, timeout=timeout)

    dist.new_group = note
    dist.is_ucc_available = lambda: True  # type: ignore[assignment]
    communicator.nccl_options = lambda settings, timeout: asdict(settings)  # type: ignore[assignment, return-value]
    mesh = build_mesh(parallel, config, device)
    dist.barrier()  # a rank that ends at once would leave others without an answer
    return mesh, made


def kinds(rank: int, config: DistConfig, device: torch.device) -> list[tuple[tuple[int, ...], str | None, str | None]]:
    parallel = ParallelConfig(tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
    _, made = made_groups(parallel, config, device)
    named = [(ranks, a.get("backend"), a.get("pg_options", {}).get("group")) for ranks, a in made]
    return [(tuple(r - rank for r in ranks), backend, group) for ranks, backend, group in named]


def of_rank_0(config: DistConfig, device: torch.device) -> list[tuple[tuple[int, ...], str | None, str | None]]:
    return run_ranks(kinds, 4, config, device)[0]  # type: ignore[no-any-return]


def test_named_kinds_are_made_with_their_settings_and_the_others_plainly() -> None:
    config = DistConfig(communicators=(URGENT, CommunicatorConfig(group="pp", max_ctas=8)))
    # pp; tp; messages upwards; embd, which has no settings and therefore does not share pp's communicator. mp is the world.
    assert Counter(of_rank_0(config, CUDA)) == Counter(
        [((0, 2), None, "pp"), ((0, 1), None, "tp"), ((0, 2), None, "pp"), ((0, 2), None, None)]
    )


def test_pipelines_alone_get_the_library_of_pipelines() -> None:
    config = DistConfig(pipeline_backend="ucc", communicators=(CommunicatorConfig(group="pp", max_ctas=8),))
    found = of_rank_0(config, CUDA)
    assert [entry for entry in found if entry[1] == "ucc"] == [((0, 2), "ucc", None)] * 2, "UCC heeds no settings of NCCL"
    assert ((0, 1), None, None) in found
    assert ((0, 2), None, None) in found, "a tied embedding's gradients stay with NCCL"


def test_a_cpu_run_makes_the_same_groups_whatever_is_set() -> None:
    plain = of_rank_0(DistConfig(), CPU)
    assert of_rank_0(DistConfig(pipeline_backend="ucc", communicators=(URGENT, SLOW)), CPU) == plain
    assert all(backend is None and group is None for _, backend, group in plain)


def shared(_rank: int, *settings: CommunicatorConfig) -> tuple[bool, bool, bool]:
    mesh, _ = made_groups(ParallelConfig(), DistConfig(communicators=settings), CUDA)
    return mesh.dp_cp is mesh.world, mesh.dp is mesh.dp_cp, mesh.intra_dp_cp is mesh.dp_cp


def test_groups_of_equal_ranks_part_when_one_has_settings() -> None:
    assert run_ranks(shared, 2) == [(True, True, True)] * 2
    assert run_ranks(shared, 2, SLOW) == [(False, False, True)] * 2, "one instance's gradients are dp_cp's"
    assert run_ranks(shared, 2, CommunicatorConfig(group="intra_dp_cp", max_ctas=1)) == [(True, True, False)] * 2


def test_settings_become_options_of_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in has the fields of torch's class, which builds without CUDA lack."""

    class Options:
        def __init__(self, is_high_priority_stream: bool = False) -> None:
            self.is_high_priority_stream, self.config, self._timeout = is_high_priority_stream, SimpleNamespace(), None

    monkeypatch.setattr(dist, "ProcessGroupNCCL", SimpleNamespace(Options=Options), raising=False)
    options: Any = nccl_options(SLOW, MINUTE)
    assert vars(options.config) == {"min_ctas": 2, "max_ctas": 4, "cga_cluster_size": 0, "net_name": "IB"}
    assert (options.is_high_priority_stream, options._timeout) == (False, MINUTE)
    urgent: Any = nccl_options(URGENT, MINUTE)
    assert (urgent.is_high_priority_stream, vars(urgent.config)) == (True, {})
    assert Communicator(None, URGENT).arguments(MINUTE)["pg_options"].is_high_priority_stream


def test_a_torch_without_ucc_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_ucc_available", lambda: False)
    with pytest.raises(InputError, match="pipeline_model_parallel_comm_backend is ucc, and this torch was built without UCC"):
        communicator_of(DistConfig(pipeline_backend="ucc"), "pp", CUDA)
    assert communicator_of(DistConfig(pipeline_backend="ucc"), "tp", CUDA) == Communicator()


def test_a_world_of_gloo_on_a_gpu_takes_no_settings_of_nccl() -> None:
    assert communicator_of(DistConfig(backend="gloo", communicators=(URGENT,)), "tp", CUDA) == Communicator()


def test_a_cpu_run_says_what_it_does_not_heed() -> None:
    lines = list(without_effect(DistConfig(pipeline_backend="ucc", communicators=(URGENT, SLOW)), CPU))
    assert lines == [
        "distributed_backend nccl: this run is on the CPU and uses gloo",
        "pipeline_model_parallel_comm_backend ucc has no effect: this run is on the CPU and uses gloo",
        "NCCL's settings of groups (tp, dp_cp) have no effect: this run is on the CPU and uses gloo",
    ]
    assert list(without_effect(DistConfig(backend="gloo"), CPU)) == []
    assert list(without_effect(DistConfig(communicators=(URGENT,)), CUDA)) == []
