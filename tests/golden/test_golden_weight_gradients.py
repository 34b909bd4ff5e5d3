"""When weight gradients are computed: at once, behind the input gradient's message, or when the backwards are through."""

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from runs import build_container, train

from primus.engine.config import ConfigContainer
from primus.engine.parallel.data import GradientBuffers
from primus.engine.parallel.slot import GradientSlot
from primus.engine.pipeline.links import Links
from primus.engine.train.pretrain import pretrain

pytestmark = pytest.mark.slow  # whole runs

STAGES = {"num_layers": 4, "pipeline_model_parallel_size": 2}
DELAYED, POSTPONED = {"delay_wgrad_compute": True}, {"defer_embedding_wgrad_compute": True}
CHUNKS = {"num_virtual_stages_per_pipeline_rank": 2}
FOLDED = {"patch_zero_bubble": True, "enable_zero_bubble": False, "enable_1f1b_v": True}
TIED = {"untie_embeddings_and_output_weights": False}
OVERLAPPED = {"overlap_grad_reduce": True, "use_distributed_optimizer": True, "ddp_bucket_size": 2000}

CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("delayed-chunks-tied", 2, {**DELAYED, **CHUNKS, **TIED}),
    ("delayed-overlapped", 4, {**DELAYED, **OVERLAPPED}),
    ("postponed-fold-tied", 2, {**POSTPONED, **FOLDED, **TIED}),
    ("postponed-two-overlapped", 4, {**POSTPONED, "wgrad_deferral_limit": 2, **OVERLAPPED}),
    ("postponed-and-delayed", 4, {**POSTPONED, **DELAYED, "wgrad_deferral_limit": 3, "tensor_model_parallel_size": 2}),
    ("postponed-sharded", 4, {**POSTPONED, "use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads"}),
]


def in_float64(config: ConfigContainer) -> ConfigContainer:
    return replace(config, mixed_precision=replace(config.mixed_precision, params_dtype="float64", grad_dtype="float64"))


def numbers(folder: Path, name: str, keys: dict[str, Any], ranks: int) -> list[float]:
    rows = train(folder, name, {**keys, "train_iters": 2}, ranks=ranks, change=in_float64)
    return [row[key] for row in rows for key in ("lm_loss", "grad_norm")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], list[float]]:
    folder = tmp_path_factory.mktemp("alone")
    results = {tied: numbers(folder, f"tied-{tied}", {"num_layers": 4, **(TIED if tied else {})}, 1) for tied in (False, True)}
    return results.__getitem__


@pytest.mark.parametrize(("ranks", "keys"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_the_moment_changes_no_number(tmp_path: Path, alone: Any, ranks: int, keys: dict[str, Any]) -> None:
    found = numbers(tmp_path, "run", {**STAGES, **keys}, ranks)
    assert len(found) == 4
    assert found == pytest.approx(alone("untie_embeddings_and_output_weights" in keys), rel=1e-12)


def events(folder: Path, keys: dict[str, Any]) -> list[str]:
    """Return what the last of two stages does in a step: products of output layer and of other weights, messages, and so on."""
    return list(
        run_ranks(_events, 2, build_container(folder, "run", 2, {**STAGES, "micro_batch_size": 1, "train_iters": 1, **keys}))[1]
    )


def _events(_rank: int, config: ConfigContainer) -> list[str]:
    noted: list[str] = []

    def note(owner: type, method: str, event: Callable[..., str]) -> None:
        original = getattr(owner, method)

        def noting(self: Any, *arguments: Any) -> Any:
            noted.append(event(self))
            return original(self, *arguments)

        setattr(owner, method, noting)

    note(GradientSlot, "_add_product", lambda slot: "output" if slot.name == "output_layer.weight" else "others")
    note(Links, "give", lambda _: "send")
    note(Links, "end", lambda _: "end")
    note(GradientBuffers, "compute_deferred", lambda _: "deferred:")
    pretrain(config, process_start=0.0)
    return [event for event, _ in groupby(noted)]


def test_a_whole_backward_computes_them_before_its_message(tmp_path: Path) -> None:
    """The loss computes the output layer's itself."""
    assert events(tmp_path, {}) == ["others", "send"] * 8 + ["end"]


def test_a_delayed_one_sends_its_message_first(tmp_path: Path) -> None:
    assert events(tmp_path, DELAYED) == ["send", "deferred:", "output", "others"] * 8 + ["end"]


def test_split_backwards_put_off_the_output_layer_too(tmp_path: Path) -> None:
    seen = events(tmp_path, {"patch_primus_pipeline": True, "pp_algorithm": "zero-bubble"})
    assert seen.count("output") == 8
    assert all(before == "deferred:" for before, event in pairwise(seen) if event == "output")


def test_postponed_ones_come_last_and_before_the_last_message_has_arrived(tmp_path: Path) -> None:
    """With a limit the first microbatches only."""
    now, later = ["output", "others", "send"], ["others", "send"]
    assert events(tmp_path, {**POSTPONED, "wgrad_deferral_limit": 3}) == [*later * 3, *now * 5, "output", "end"]
