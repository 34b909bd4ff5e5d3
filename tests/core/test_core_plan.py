"""The plan of a run: parameters as the model really has them, memory by hand, length and checkpoints."""

from dataclasses import replace
from typing import Any

import pytest

from primus.core.layer_activations import LayerBytes
from primus.core.plan import plan_of
from primus.engine.config import (
    AttentionConfig,
    CheckpointConfig,
    ConfigContainer,
    DatasetConfig,
    DDPConfig,
    MixedPrecisionConfig,
    ModelConfig,
    OffloadConfig,
    OptimizerConfig,
    ParallelConfig,
    PipelineConfig,
    PositionConfig,
    RecomputeConfig,
    RunConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainConfig,
)
from primus.engine.config.attention import MLAConfig
from primus.engine.config.moe import MoEConfig
from primus.engine.config.mtp import MTPConfig
from primus.engine.model.size import padded_vocab_size, parameter_count

MODEL = ModelConfig(
    num_layers=4,
    hidden_size=16,
    ffn_hidden_size=24,
    seq_length=8,
    vocab_size=90,
    make_vocab_size_divisible_by=8,
    attention=AttentionConfig(num_attention_heads=4, num_query_groups=2, kv_channels=6),
    position=PositionConfig(max_position_embeddings=8),
)
VARIANTS = {
    "plain": MODEL,
    "tied": replace(MODEL, tie_embeddings=True),
    "biases": replace(
        MODEL,
        add_bias_linear=True,
        normalization="LayerNorm",
        activation="gelu",
        attention=replace(MODEL.attention, add_qkv_bias=True),
        position=PositionConfig(type="learned_absolute", max_position_embeddings=8),
    ),
    "qk-norm": replace(MODEL, attention=replace(MODEL.attention, qk_norm="model")),
    "latent": replace(
        MODEL,
        attention=replace(
            MODEL.attention,
            qk_norm="model",
            mla=MLAConfig(enabled=True, q_lora_rank=10, kv_lora_rank=6, qk_head_dim=4, qk_pos_emb_head_dim=2, v_head_dim=4),
        ),
    ),
    "predictions": replace(MODEL, mtp=MTPConfig(num_layers=2)),
    "tied-predictions": replace(MODEL, tie_embeddings=True, mtp=MTPConfig(num_layers=1)),
    "experts": replace(
        MODEL, moe=MoEConfig(num_experts=4, layers=(1, 2), ffn_hidden_size=10, shared_expert_intermediate_size=12)
    ),
}


def container(model: ModelConfig = MODEL, **parts: Any) -> ConfigContainer:
    whole: dict[str, Any] = {
        "run": RunConfig(work_group="g", user_name="u", exp_name="e", folder="/r"),
        "train": TrainConfig(micro_batch_size=1, global_batch_size=8, train_iters=6),
        "model": model,
        "optimizer": OptimizerConfig(lr=1e-3),
        "scheduler": SchedulerConfig(lr_decay_steps=48, weight_decay_incr_steps=48),
        "dataset": DatasetConfig(mock_data=True),
        "tokenizer": TokenizerConfig(type="NullTokenizer", vocab_size=89),
        "mixed_precision": MixedPrecisionConfig(params_dtype="float32"),
    }
    return ConfigContainer(**{**whole, **parts})


def with_degrees(model: ModelConfig, **degrees: Any) -> ModelConfig:
    return replace(model, parallel=ParallelConfig(**degrees))


@pytest.mark.parametrize("model", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("tensor", [1, 2])
def test_parameters_of_a_rank_are_those_the_model_has(model, tensor):
    from ranks import run_ranks

    model = with_degrees(model, tensor_model_parallel_size=tensor)
    (stage,) = plan_of(container(model), tensor).places
    assert run_ranks(_count, tensor, model) == [stage.parameters] * tensor


def _count(rank: int, model: ModelConfig) -> int:
    import torch

    from primus.engine.config import DistConfig
    from primus.engine.model.builder import build_model
    from primus.engine.parallel.mesh import build_mesh
    from primus.engine.parallel.random import RandomStreams

    mesh = build_mesh(model.parallel, DistConfig(backend="gloo"), torch.device("cpu"))
    streams = RandomStreams(1, mesh.coordinates)
    (built,) = build_model(model, mesh=mesh, dtype=torch.float32, device="cpu", seed=1, streams=streams)
    return sum(parameter.numel() for parameter in built.parameters())


@pytest.mark.parametrize(
    "degrees",
    [
        {"expert_model_parallel_size": 2},
        {"tensor_model_parallel_size": 2, "sequence_parallel": True},
        {"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1},
        {"expert_tensor_parallel_size": 2},
    ],
    ids=["ep2", "tp2", "tp2-etp1", "etp2"],
)
def test_a_rank_has_its_experts_and_its_part_of_each(degrees):
    from ranks import run_ranks

    model = with_degrees(VARIANTS["experts"], **degrees)
    (stage,) = plan_of(container(model), 2).places
    assert run_ranks(_count, 2, model) == [stage.parameters] * 2
    assert stage.parameters < plan_of(container(model), 2).parameters


def test_the_distributed_optimizer_divides_experts_over_the_ranks_that_hold_them():
    model = with_degrees(VARIANTS["experts"], expert_model_parallel_size=2)
    whole = sum(layer.experts for layer in parameter_count(model).layers)
    plan = plan_of(container(model, ddp=DDPConfig(use_distributed_optimizer=True)), 4)
    dense = plan.parameters - whole
    assert plan.places[0].parameters == dense + whole // 2
    assert plan.places[0].memory.optimizer == (dense // 4 + whole // 2 // 2) * 8


def test_experts_keep_a_row_for_each_of_a_tokens_choices():
    def kept(**moe):
        model = replace(VARIANTS["experts"], moe=replace(VARIANTS["experts"].moe, **moe))
        return LayerBytes(model, 4, 1, None).kept(1)

    # Its choice, place and weight come on top.
    assert kept(router_topk=3) - kept() == (16 + 2 * 10) * 4 + 32
    assert kept() - kept(shared_expert_intermediate_size=None) == 3 * 12 * 4


@pytest.mark.parametrize("model", VARIANTS.values(), ids=VARIANTS)
def test_stages_hold_the_whole_model(model):
    whole = plan_of(container(model), 1).parameters
    stages = plan_of(container(with_degrees(model, pipeline_model_parallel_size=2)), 2).places
    copies = 96 * 16 if model.tie_embeddings or model.mtp.num_layers else 0
    assert sum(stage.parameters for stage in stages) == whole + copies
    assert [(stage.layers, stage.ranks) for stage in stages] == [((range(2),), (0,)), ((range(2, 4),), (1,))]


@pytest.mark.parametrize(
    ("dtype", "bytes_each"),
    [("float32", (4, 4, 8)), ("bfloat16", (2, 4, 12)), ("float64", (8, 8, 16))],
)
def test_memory_follows_the_precision(dtype, bytes_each):
    grad_dtype = "float64" if dtype == "float64" else "float32"
    precision = MixedPrecisionConfig(params_dtype=dtype, grad_dtype=grad_dtype)
    plan = plan_of(container(mixed_precision=precision), 1)
    memory = plan.places[0].memory
    assert (memory.weights, memory.gradients, memory.optimizer) == tuple(plan.parameters * each for each in bytes_each)
    assert memory.total == plan.parameters * sum(bytes_each) + memory.activations


def test_the_distributed_optimizer_divides_its_state():
    whole = plan_of(container(), 4).places[0].memory.optimizer
    assert plan_of(container(ddp=DDPConfig(use_distributed_optimizer=True)), 4).places[0].memory.optimizer == whole // 4


def test_instances_of_the_optimizer_hold_a_whole_state_each():
    config = container(
        with_degrees(MODEL, num_distributed_optimizer_instances=2), ddp=DDPConfig(use_distributed_optimizer=True)
    )
    assert plan_of(config, 4).places[0].memory.optimizer == plan_of(container(), 4).places[0].memory.optimizer // 2


def test_sharded_gradients_and_weights_leave_a_share_and_one_unit():
    fsdp = DDPConfig(
        use_distributed_optimizer=True, use_megatron_fsdp=True, data_parallel_sharding_strategy="optim_grads_params"
    )
    whole, sharded = (plan_of(container(ddp=ddp), 4).places[0] for ddp in (DDPConfig(), fsdp))
    table = padded_vocab_size(MODEL) * MODEL.hidden_size
    unit = max(table, parameter_count(MODEL).layers[0].total)
    assert sharded.memory.weights == (whole.parameters // 4 + unit) * whole.memory.weights // whole.parameters
    assert sharded.memory.gradients == (whole.parameters // 4 + unit) * whole.memory.gradients // whole.parameters
    assert plan_of(container(ddp=DDPConfig(use_torch_fsdp2=True)), 4).places[0].memory == sharded.memory


def test_sgd_without_momentum_has_no_state():
    config = container(optimizer=OptimizerConfig(lr=1, optimizer="sgd", sgd_momentum=0.0))
    assert plan_of(config, 1).places[0].memory.optimizer == 0


def test_activations_shrink_with_tensor_and_sequence_parallelism_and_grow_with_depth():
    def activations(world_size=1, **degrees):
        return plan_of(container(with_degrees(MODEL, **degrees)), world_size).places[0].memory.activations

    whole = activations()
    divided = activations(2, tensor_model_parallel_size=2)
    assert whole // 2 < divided < whole
    assert activations(2, tensor_model_parallel_size=2, sequence_parallel=True) == pytest.approx(whole / 2, rel=0.01)


@pytest.mark.parametrize(("limit", "waiting"), [(0, 7), (3, 3)])
def test_postponed_gradients_keep_what_they_are_products_of(limit, waiting):
    def last_stage(**keys):
        model = replace(with_degrees(MODEL, pipeline_model_parallel_size=2), pipeline=PipelineConfig(**keys))
        return plan_of(container(model), 2).places[1].memory.activations

    added = last_stage(postpone_output_gradient=True, output_gradient_limit=limit) - last_stage()
    assert added == waiting * 8 * (96 + 16) * 4, "beside the last microbatch's activations"


def test_recomputed_layers_keep_their_inputs_and_one_replay():
    model = replace(MODEL, num_layers=64)

    def activations(**keys):
        return plan_of(container(replace(model, recompute=RecomputeConfig(**keys))), 1).places[0].memory.activations

    layer = LayerBytes(model, 4, 1, None)
    less = 8 * (layer.kept(0) - layer.stream)
    some = activations(granularity="full", method="block", num_layers=16)
    assert some - activations(granularity="full", method="block", num_layers=32) == 16 * less
    assert activations(granularity="full", layer_ids=tuple(range(16))) == some
    each, pairs = (activations(granularity="full", method="uniform", num_layers=number) for number in (1, 2))
    assert each - pairs == 8 * (32 * layer.stream - layer.kept(0)), "half the inputs, and two layers at a time"


def test_offloaded_activations_count_while_they_are_on_the_device():
    def activations(algorithm, **offload):
        pipeline = PipelineConfig(algorithm=algorithm, num_chunks=2, offload=OffloadConfig(num_chunks=1, **offload))
        model = replace(with_degrees(MODEL, pipeline_model_parallel_size=2), pipeline=pipeline)
        return plan_of(container(model), 2).places[0].memory.activations

    for algorithm in ("v-half", "group-interleaved"):
        whole, none = activations(algorithm), activations(algorithm, tensors="all", time=0.01)
        assert none < whole
    whole, attention = activations("v-half"), activations("v-half", tensors="attn")
    # Queries, keys, values and outputs of the one layer of the first chunk; at the peak two microbatches are away.
    width = 2 * (MODEL.attention.num_attention_heads + MODEL.attention.num_query_groups) * MODEL.attention.kv_channels
    assert whole - attention == 2 * 8 * width * 4


def test_length_of_the_run():
    plan = plan_of(container(), 2)
    assert (plan.iterations, plan.samples, plan.tokens, plan.microbatches) == (6, 48, 384, 4)
    by_samples = container(train=TrainConfig(micro_batch_size=1, global_batch_size=8, train_iters=6, train_samples=50))
    assert plan_of(by_samples, 1).samples == 50


@pytest.mark.parametrize(
    ("save", "interval", "last", "number"),
    [
        (None, 2, True, 0),
        ("/c", 2, True, 3),
        ("/c", 4, True, 2),
        ("/c", 4, False, 1),
        ("/c", None, True, 1),
        ("/c", 9, False, 0),
    ],
)
def test_number_of_checkpoints(save, interval, last, number):
    checkpoint = CheckpointConfig(save=save, save_interval=interval, disable_last_saving=not last)
    assert plan_of(container(checkpoint=checkpoint), 1).checkpoints == number
