"""One step, in one process: order of unscaling, clipping and update; overflow, decay, state for checkpoints."""

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from primus.engine.config import DDPConfig, MixedPrecisionConfig, OptimizerConfig, SchedulerConfig
from primus.engine.optim import Optimizer, build_optimizer
from primus.engine.parallel.data import GradientBuffers
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.sharding import Sharding
from primus.engine.precision import dtype_of
from primus.errors import InputError, RunError

SCHEDULE = SchedulerConfig(
    lr_decay_style="constant", lr_decay_steps=100, weight_decay_incr_steps=100, start_weight_decay=0.5, end_weight_decay=0.5
)
SGD = OptimizerConfig(optimizer="sgd", sgd_momentum=0.0, lr=0.1, clip_grad=0.0)
ADAM = OptimizerConfig(lr=0.1, clip_grad=0.0)
FLOAT32 = MixedPrecisionConfig(params_dtype="float32")


class Rig:
    """A matrix, a gain and a bias in flat memory."""

    def __init__(self, config: OptimizerConfig, precision: MixedPrecisionConfig = FLOAT32, **more: Any) -> None:
        dtype = dtype_of(precision.params_dtype)
        self.model = nn.Module()
        for name, shape in (("matrix", (3, 5)), ("gain", (5,)), ("bias", (3,))):
            values = torch.linspace(-1.0, 1.0, math.prod(shape)).view(shape).to(dtype) + 0.25
            param = nn.Parameter(values)
            param.sharding = Sharding(dim=None)
            self.model.register_parameter(name, param)
        self.params = dict(self.model.named_parameters())
        grad_dtype = dtype_of(precision.grad_dtype)
        mesh = single_mesh()
        self.buffers = GradientBuffers([self.model], DDPConfig(), mesh, grad_dtype=grad_dtype, per_token=False)
        more = {"scheduler": replace(SCHEDULE, **more.pop("schedule", {})), **more}
        self.optimizer: Optimizer = build_optimizer(config, precision, buffers=self.buffers, mesh=mesh, **more)

    def step(self, value: float, **more: Any) -> Any:
        """Make every gradient element `value` and step."""
        self.buffers.zero_grad()
        for param in self.params.values():
            param.grad_slot.add_(torch.full(param.shape, value))
        return self.optimizer.step(**more)

    def weights(self) -> dict[str, Tensor]:
        return {name: param.detach().clone() for name, param in self.params.items()}


def undecayed(config: OptimizerConfig, **more: Any) -> Rig:
    return Rig(config, schedule={"start_weight_decay": 0.0, "end_weight_decay": 0.0}, **more)


@pytest.mark.parametrize("config", [ADAM, SGD], ids=["adam", "sgd"])
def test_zero_gradients_shrink_matrices_and_leave_gains_and_biases(config: OptimizerConfig) -> None:
    rig = Rig(config)
    before = rig.weights()
    rig.step(0.0)
    after = rig.weights()
    torch.testing.assert_close(after["matrix"], before["matrix"] * (1 - 0.1 * 0.5))
    assert torch.equal(after["gain"], before["gain"])
    assert torch.equal(after["bias"], before["bias"])


@pytest.mark.parametrize(("clip", "size"), [(1.0, 1.0), (0.0, 2.0 * math.sqrt(23)), (100.0, 2.0 * math.sqrt(23))])
def test_the_update_is_that_of_the_clipped_gradient(clip: float, size: float) -> None:
    rig = undecayed(replace(SGD, clip_grad=clip))
    before = rig.weights()
    update = rig.step(2.0)
    moved = math.sqrt(sum(float((before[name] - w).square().sum()) for name, w in rig.weights().items()))
    assert update.grad_norm == pytest.approx(2.0 * math.sqrt(23), rel=1e-6)
    assert moved == pytest.approx(0.1 * size, rel=1e-5)


@pytest.mark.parametrize("config", [ADAM, replace(ADAM, clip_grad=0.5), SGD], ids=["adam", "clipped", "sgd"])
def test_a_loss_scale_changes_nothing(config: OptimizerConfig) -> None:
    plain, scaled = Rig(config), Rig(config, MixedPrecisionConfig(params_dtype="float32", loss_scale=1024.0))
    assert float(scaled.optimizer.scale_loss(torch.tensor(2.0))) == 2048.0
    for value in (0.25, 1.0):
        first, second = plain.step(value), scaled.step(value * 1024.0)
        assert first.grad_norm == pytest.approx(second.grad_norm, rel=1e-6)
    for name, weight in plain.weights().items():
        torch.testing.assert_close(scaled.weights()[name], weight, rtol=1e-6, atol=1e-7)


def test_a_grad_divisor_divides_norm_and_update() -> None:
    plain, divided = undecayed(SGD), undecayed(SGD)
    assert plain.step(0.5).grad_norm == pytest.approx(divided.step(3.5, grad_divisor=7.0).grad_norm, rel=1e-6)
    for name, weight in plain.weights().items():
        torch.testing.assert_close(divided.weights()[name], weight)


def test_zeros_and_norms_are_reported_when_asked_for() -> None:
    rig = undecayed(replace(SGD, log_num_zeros_in_grad=True, log_params_norm=True))
    update = rig.step(0.0)
    norm = math.sqrt(sum(float(w.square().sum()) for w in rig.weights().values()))
    assert (update.num_zeros, update.grad_norm) == (23, 0.0)
    assert update.params_norm == pytest.approx(norm, rel=1e-6)
    assert (Rig(SGD).step(1.0).num_zeros, Rig(SGD).step(1.0).params_norm) == (None, None)


FP16 = MixedPrecisionConfig(params_dtype="float16", initial_loss_scale=2.0**32, hysteresis=2)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_an_overflow_skips_the_step_and_only_moves_the_scale(bad: float) -> None:
    rig = Rig(ADAM, FP16)
    before, state = rig.weights(), {k: s.chunks[0].data.clone() for k, s in rig.optimizer.state_shards().items()}
    updates = [rig.step(bad) for _ in range(3)]
    assert [(u.succeeded, u.grad_norm) for u in updates] == [(False, None)] * 3
    assert (rig.optimizer.num_updates, rig.optimizer.loss_scale) == (0, 2.0**30)
    for name, weight in rig.weights().items():
        assert torch.equal(weight, before[name])
    for name, shards in rig.optimizer.state_shards().items():
        assert torch.equal(shards.chunks[0].data, state[name])


def test_state_can_be_saved_before_the_first_update_and_continues_exactly() -> None:
    first, second = Rig(ADAM, FP16), Rig(ADAM, FP16)
    for value in (math.inf, math.inf, 3.0, 1e9):
        first.step(value)
        copy_state(first, second)
        assert second.optimizer.common_state() == first.optimizer.common_state()
    assert first.step(7.0) == second.step(7.0)
    for name, weight in first.weights().items():
        assert torch.equal(second.weights()[name], weight)


def copy_state(source: Rig, target: Rig) -> None:
    """Do what a checkpoint does: weights, state through views, the common part."""
    with torch.no_grad():
        for name, param in target.params.items():
            param.copy_(source.params[name])
    theirs = source.optimizer.state_shards()
    for name, shards in target.optimizer.state_shards().items():
        for mine, other in zip(shards.chunks, theirs[name].chunks, strict=True):
            mine.data.copy_(other.data)
    target.optimizer.load_common_state(source.optimizer.common_state())


def test_state_names_say_kind_and_parameter() -> None:
    names = {config: {n.rsplit(".", 1)[0] for n in rig.optimizer.state_shards()} for config, rig in rigs().items()}
    adam = {"optimizer.state.exp_avg", "optimizer.state.exp_avg_sq"}
    assert names == {
        "adam": adam,
        "adam bf16": adam | {"optimizer.state.main_param"},
        "sgd": {"optimizer.state.momentum_buffer"},
        "plain sgd": set(),
    }


def rigs() -> dict[str, Rig]:
    return {
        "adam": Rig(ADAM),
        "adam bf16": Rig(ADAM, MixedPrecisionConfig(params_dtype="bfloat16")),
        "sgd": Rig(replace(SGD, sgd_momentum=0.9)),
        "plain sgd": Rig(SGD),
    }


def test_bf16_weights_follow_fp32_main_weights() -> None:
    rig = undecayed(replace(SGD, lr=1e-4), precision=MixedPrecisionConfig(params_dtype="bfloat16"))
    before = rig.weights()
    for _ in range(64):
        rig.step(1.0)
    # One step of 1e-4 is lost in bf16; 64 of them are not.
    main = rig.optimizer.state_shards()["optimizer.state.main_param.gain"].chunks[0].data
    torch.testing.assert_close(main, before["gain"].float() - 64e-4, rtol=1e-5, atol=1e-6)
    assert torch.equal(rig.weights()["gain"], main.bfloat16())


def test_bf16_gradients_are_widened_for_the_update() -> None:
    rig = undecayed(SGD, precision=MixedPrecisionConfig(params_dtype="bfloat16", grad_dtype="bfloat16"))
    before = rig.weights()["gain"].float()
    assert rig.step(2.0).grad_norm == pytest.approx(2.0 * math.sqrt(23))
    main = rig.optimizer.state_shards()["optimizer.state.main_param.gain"].chunks[0].data
    torch.testing.assert_close(main, before - 0.2)


def test_main_weights_are_taken_afresh_from_loaded_weights() -> None:
    rig = undecayed(SGD, precision=MixedPrecisionConfig(params_dtype="bfloat16"))
    with torch.no_grad():
        rig.params["gain"].fill_(3.0)
    rig.optimizer.reload_model_params()
    rig.step(0.0)
    assert rig.weights()["gain"].tolist() == [3.0] * 5


@pytest.mark.parametrize(("bad", "kind"), [(math.nan, "NaN"), (math.inf, "Inf")])
def test_without_a_scaler_a_bad_gradient_stops_the_run_and_spares_the_weights(bad: float, kind: str) -> None:
    rig = Rig(ADAM, check_finite=True)
    before = rig.weights()
    with pytest.raises(RunError, match=f"found {kind} in the gradient norm at iteration 4; the weights were not updated"):
        rig.step(bad, origin=lambda: "at iteration 4")
    for name, weight in rig.weights().items():
        assert torch.equal(weight, before[name])


def test_a_checkpoint_of_another_optimizer_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"'sgd'.*'adam'.*no_load_optim"):
        Rig(ADAM).optimizer.load_common_state(Rig(SGD).optimizer.common_state())


def test_the_schedule_moves_only_when_told() -> None:
    rig = Rig(ADAM, schedule={"lr_decay_style": "linear"})
    rig.step(1.0)
    assert rig.optimizer.learning_rate == 0.1
    rig.optimizer.advance_schedule(50)
    assert rig.optimizer.learning_rate == pytest.approx(0.05)


def test_the_first_chunk_is_gathered_before_the_others_are_updated() -> None:
    chunks = [torch.nn.Linear(4, 4, bias=False) for _ in range(3)]
    before = [chunk.weight.detach().clone() for chunk in chunks]
    buffers = GradientBuffers(chunks, DDPConfig(), single_mesh(), grad_dtype=torch.float32, per_token=False)
    optimizer = build_optimizer(
        OptimizerConfig(lr=0.1),
        MixedPrecisionConfig(params_dtype="float32"),
        scheduler=SchedulerConfig(lr_decay_steps=10, weight_decay_incr_steps=10),
        buffers=buffers,
        mesh=single_mesh(),
        first_chunk_apart=True,
    )
    gathers: list[tuple[set[int], list[bool]]] = []

    def noting(numbers: Collection[int] | None) -> None:
        moved = [not torch.equal(chunk.weight, old) for chunk, old in zip(chunks, before, strict=True)]
        gathers.append((set(numbers or ()), moved))

    buffers.gather_params = noting  # type: ignore[method-assign]
    buffers.zero_grad()
    sum(chunk(torch.ones(1, 4)).sum() for chunk in chunks).backward()
    buffers.finish_grad_sync()
    optimizer.step()
    assert gathers == [({0}, [True, False, False]), ({1, 2}, [True, True, True])]
