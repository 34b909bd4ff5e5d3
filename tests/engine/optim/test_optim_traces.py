"""Whole training traces of Megatron-Core: the real model, microbatches, normalisation, buffers, optimizer, schedule."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from primus.engine.config import (
    AttentionConfig,
    DDPConfig,
    MixedPrecisionConfig,
    ModelConfig,
    OptimizerConfig,
    PositionConfig,
    SchedulerConfig,
)
from primus.engine.model.builder import build_model
from primus.engine.optim import build_optimizer
from primus.engine.parallel.data import GradientBuffers
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams

DATA = Path(__file__).parents[2] / "data" / "optim"
CASES = sorted(path.stem for path in DATA.glob("train_*.json"))


def model_config(keys: dict[str, Any]) -> ModelConfig:
    heads = keys["num_attention_heads"]
    return ModelConfig(
        num_layers=keys["num_layers"],
        hidden_size=keys["hidden_size"],
        ffn_hidden_size=keys["ffn_hidden_size"],
        seq_length=keys["seq_length"],
        vocab_size=keys["vocab_size"],
        make_vocab_size_divisible_by=1,
        activation="swiglu" if keys["swiglu"] else "gelu",
        normalization=keys["normalization"],
        add_bias_linear=keys["add_bias_linear"],
        tie_embeddings=not keys["untie_embeddings_and_output_weights"],
        attention=AttentionConfig(
            num_attention_heads=heads,
            num_query_groups=keys["num_query_groups"] or heads,
            kv_channels=keys["hidden_size"] // heads,
            add_qkv_bias=keys["add_bias_linear"],
        ),
        position=PositionConfig(type=keys["position_embedding_type"], max_position_embeddings=keys["max_position_embeddings"]),
    )


def optimizer_config(keys: dict[str, Any]) -> OptimizerConfig:
    return OptimizerConfig(
        optimizer=keys["optimizer"],
        lr=keys["lr"],
        min_lr=keys["min_lr"],
        decoupled_lr=keys.get("decoupled_lr"),
        decoupled_min_lr=keys.get("decoupled_min_lr"),
        # Keys that the traces do not list have trainer_base's values.
        adam_beta2=keys.get("adam_beta2", 0.95),
        sgd_momentum=keys.get("sgd_momentum", 0.9),
        clip_grad=keys["clip_grad"],
        log_num_zeros_in_grad=True,
        log_params_norm=True,
    )


def scheduler_config(keys: dict[str, Any]) -> SchedulerConfig:
    batch = keys["global_batch_size"]
    return SchedulerConfig(
        lr_decay_style=keys["lr_decay_style"],
        lr_decay_steps=keys.get("lr_decay_iters", keys.get("train_iters")) * batch,
        lr_warmup_steps=keys.get("lr_warmup_iters", 0) * batch,
        start_weight_decay=keys["weight_decay"],
        end_weight_decay=keys["weight_decay"],
        weight_decay_incr_steps=keys.get("train_iters", 20) * batch,
    )


class Run:
    """One process that trains on given microbatches as the loop does."""

    def __init__(self, keys: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
        mesh, dtype = single_mesh(), "bfloat16" if keys.get("bf16") else "float32"
        self.per_token = keys.get("calculate_per_token_loss", False)
        self.batch_size = keys["global_batch_size"]
        streams = RandomStreams(1, mesh.coordinates)
        (self.model,) = build_model(
            model_config(keys), mesh=mesh, dtype=getattr(torch, dtype), device=mesh.device, seed=1, streams=streams
        )
        self.buffers = GradientBuffers([self.model], DDPConfig(), mesh, grad_dtype=torch.float32, per_token=self.per_token)
        self.optimizer = build_optimizer(
            optimizer_config(keys),
            MixedPrecisionConfig(params_dtype=dtype),
            scheduler=scheduler_config(keys),
            buffers=self.buffers,
            mesh=mesh,
        )
        with torch.no_grad():
            for name, param in self.model.named_parameters():
                param.copy_(weights[name])
        self.optimizer.reload_model_params()

    def step(self, microbatches: list[dict[str, torch.Tensor]]) -> tuple[list[list[float]], Any]:
        """Return each microbatch's loss sum and token count, and what the optimizer did."""
        self.buffers.zero_grad()
        sums = []
        for i, batch in enumerate(microbatches):
            ids, mask = batch["input_ids"].long(), batch["loss_mask"].float()
            positions = torch.arange(ids.shape[1]).expand_as(ids)
            total = self.model(ids, positions, None, batch["labels"].long(), mask)
            sums.append([total.item(), mask.sum().item()])
            objective = total if self.per_token else total / mask.sum() / len(microbatches)
            if i + 1 < len(microbatches):
                with self.buffers.no_sync():
                    self.optimizer.scale_loss(objective).backward()
            else:
                self.optimizer.scale_loss(objective).backward()
        self.buffers.finish_grad_sync()
        divisor = sum(count for _, count in sums) if self.per_token else 1.0
        update = self.optimizer.step(grad_divisor=divisor)
        self.optimizer.advance_schedule(self.batch_size)
        return sums, update


def microbatches_of(tensors: dict[str, torch.Tensor], prefix: str, count: int) -> list[dict[str, torch.Tensor]]:
    names = ("input_ids", "labels", "loss_mask")
    return [{name: tensors[f"{prefix}{i}/{name}"] for name in names} for i in range(count)]


def comparable_rows(name: str, tensor: torch.Tensor, keys: dict[str, Any]) -> torch.Tensor:
    """Leave out the key part of a QKV bias: its gradient is zero but for rounding, which Adam blows up."""
    if not name.endswith("linear_qkv.bias"):
        return tensor
    channels = keys["hidden_size"] // keys["num_attention_heads"]
    return tensor.view(keys["num_attention_heads"], 3, channels)[:, [0, 2]]


def check_end(run: Run, tensors: dict[str, torch.Tensor], keys: dict[str, Any], tolerance: dict[str, float]) -> None:
    for name, param in run.model.named_parameters():
        ours, theirs = (comparable_rows(name, t.float(), keys) for t in (param.detach(), tensors[f"w_end/{name}"]))
        torch.testing.assert_close(ours, theirs, **tolerance, msg=lambda text, name=name: f"{name}: {text}")


def chance_zeros(keys: dict[str, Any]) -> int:
    """How many gradient elements may be zero in one implementation and rounding noise in the other."""
    if keys["bf16"]:
        return 12
    return keys["num_layers"] * keys["hidden_size"] if keys["add_bias_linear"] else 0


@pytest.mark.parametrize("case", CASES)
def test_training_follows_megatron_core(case: str) -> None:
    reference, tensors = json.loads((DATA / f"{case}.json").read_text()), load_file(DATA / f"{case}.safetensors")
    keys, tolerance = reference["flat_keys"], reference["tolerance"]
    run = Run(keys, {name[3:]: tensor for name, tensor in tensors.items() if name.startswith("w0/")})
    for expected in reference["iterations"]:
        assert run.optimizer.learning_rate == pytest.approx(expected["lr"], rel=1e-12)
        microbatches = microbatches_of(tensors, f"batch/{expected['iteration']}/", reference["num_microbatches"])
        sums, update = run.step(microbatches)
        for ours, theirs in zip(sums, expected["microbatch_loss_sum_and_tokens"], strict=True):
            assert ours == pytest.approx(theirs, **rtol(tolerance["loss"]))
        assert update.grad_norm == pytest.approx(expected["grad_norm"], **rtol(tolerance["grad_norm"]))
        # The reference measures bf16 weights, we their fp32 main copies.
        assert update.params_norm == pytest.approx(expected["params_norm"], rel=1e-3 if keys["bf16"] else 1e-5)
        assert update.num_zeros == pytest.approx(expected["num_zeros"], abs=chance_zeros(keys))
    check_end(run, tensors, keys, tolerance["w_end"])


def test_three_steps_equal_the_single_process_run_of_the_distributed_oracle() -> None:
    reference = json.loads((DATA / "dense_single.json").read_text())
    tensors, keys = load_file(DATA / "dense_single.safetensors"), reference["flat_keys"]
    keys |= {"global_batch_size": 4}
    run = Run(keys, {name[3:]: tensor for name, tensor in tensors.items() if name.startswith("w0/")})
    for expected in reference["iterations"]:
        assert run.optimizer.learning_rate == pytest.approx(expected["lr"], rel=1e-12)
        sums, update = run.step(microbatches_of(tensors, "batch/", reference["num_microbatches"]))
        assert [total for total, _ in sums] == pytest.approx(expected["microbatch_loss_sum"], rel=1e-5)
        assert update.grad_norm == pytest.approx(expected["grad_norm"], rel=1e-4)
    check_end(run, tensors, keys, reference["tolerance"]["w_end"])


def rtol(tolerance: dict[str, float]) -> dict[str, float]:
    return {"rel": tolerance["rtol"]}
