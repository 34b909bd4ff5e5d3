"""How many parameters adapters add to a model: integers from the configuration, no torch."""

from dataclasses import dataclass
from typing import Literal

from primus.engine.config.linears import part_rows, targets
from primus.engine.config.model import GATED_ACTIVATIONS, ModelConfig
from primus.engine.config.peft import PEFTConfig
from primus.engine.model.size import LayerSize

__all__ = ["AdapterSizes", "adapted_inputs", "adapted_outputs", "adapter_sizes", "factor_sizes", "linear_size"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterSizes:
    """Parameters of adapters by layer."""

    layers: tuple[LayerSize, ...]
    predictions: tuple[LayerSize, ...]
    """Of layers behind the last one that predict tokens further ahead."""

    @property
    def total(self) -> int:
        """All of them."""
        return sum(layer.total for layer in (*self.layers, *self.predictions))


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The weight [outputs, inputs] of a linear, and which of the two tensor-parallel ranks divide."""

    outputs: int
    inputs: int
    divided: Literal["outputs", "inputs"] | None


def adapter_sizes(peft: PEFTConfig, model: ModelConfig) -> AdapterSizes:
    """Return what the adapters have that `peft` names."""
    sizes = [LayerSize() for _ in range(model.num_layers + model.mtp.num_layers)]
    for name, parts in targets(peft, model).parts.items():
        matrix, number = _matrix(name, model), int(name.split(".")[2])
        at = number if name.startswith("decoder.") else model.num_layers + number
        sizes[at] += _of_experts(peft, model, name) if ".experts." in name else _of_linear(peft, model, name, parts, matrix)
    return AdapterSizes(layers=tuple(sizes[: model.num_layers]), predictions=tuple(sizes[model.num_layers :]))


def adapted_outputs(peft: PEFTConfig, model: ModelConfig) -> dict[str, int]:
    """Return the outputs of each linear that has an adapter, by name."""
    return {name: _matrix(name, model).outputs for name in targets(peft, model).parts}


def adapted_inputs(peft: PEFTConfig, model: ModelConfig) -> dict[str, int]:
    """Return the inputs of each linear that has an adapter, by name."""
    return {name: _matrix(name, model).inputs for name in targets(peft, model).parts}


def linear_size(name: str, model: ModelConfig) -> int:
    """Return the weights of a linear, of one expert where it is of experts."""
    matrix = _matrix(name, model)
    return matrix.outputs * matrix.inputs


def factor_sizes(peft: PEFTConfig, model: ModelConfig, name: str, parts: tuple[str, ...]) -> tuple[int, int]:
    """Return how many numbers A and B of a linear have: A for each of its parts, B with the rows of those that have one."""
    matrix = _matrix(name, model)
    if ".experts." in name:
        dim = peft.dim // model.moe.router_topk if peft.normalize_moe_lora else peft.dim
        return dim * matrix.inputs, dim * matrix.outputs
    rows = matrix.outputs
    if parts:
        place = part_rows(name, rows, model)
        rows = place.groups * sum(place.widths[part] for part in parts)
    return max(1, len(parts)) * peft.dim * matrix.inputs, rows * peft.dim


def _of_linear(peft: PEFTConfig, model: ModelConfig, name: str, parts: tuple[str, ...], matrix: _Matrix) -> LayerSize:
    """Return A, B, and with DoRA a length for each row."""
    (a, b), divided = factor_sizes(peft, model, name, parts), matrix.divided
    if parts:
        place = part_rows(name, matrix.outputs, model)
        if place.divides_groups and place.groups < model.parallel.tensor_model_parallel_size:
            divided = None
    elif peft.scheme == "dora":
        b += matrix.outputs
    if divided is None:
        return LayerSize(whole=a + b)
    return LayerSize(whole=a, divided=b) if divided == "outputs" else LayerSize(whole=b, divided=a)


def _of_experts(peft: PEFTConfig, model: ModelConfig, name: str) -> LayerSize:
    """Return what all experts of a layer share, which every rank has, and what each has of its own: with DoRA its lengths."""
    m, pair = model.moe, sum(factor_sizes(peft, model, name, ()))
    lengths = _matrix(name, model).outputs if peft.scheme == "dora" else 0
    shared, each = (pair, lengths) if peft.share_expert_adapters else (0, pair + lengths)
    assert m.num_experts is not None
    return LayerSize(whole=shared, experts=m.num_experts * each, active=m.router_topk * each)


def _matrix(name: str, model: ModelConfig) -> _Matrix:
    """Return the weight of a linear."""
    # A layer that predicts further ahead is like the last one.
    number = int(name.split(".")[2]) if name.startswith("decoder.") else model.num_layers - 1
    h, attention, last = model.hidden_size, model.attention, name.rpartition(".")[2]
    heads, mla = attention.num_attention_heads, attention.mla
    match last:
        case "linear_qkv":
            queries = heads * (1 + attention.output_gate)
            return _Matrix((queries + 2 * attention.num_query_groups) * attention.kv_channels, h, "outputs")
        case "linear_q_proj":
            return _Matrix(heads * mla.score_channels, h, "outputs")
        case "linear_q_down_proj":
            return _Matrix(mla.q_lora_rank or 0, h, None)
        case "linear_q_up_proj":
            return _Matrix(heads * mla.score_channels, mla.q_lora_rank or 0, "outputs")
        case "linear_kv_down_proj":
            return _Matrix(mla.kv_lora_rank + mla.qk_pos_emb_head_dim, h, None)
        case "linear_kv_up_proj":
            return _Matrix(heads * (mla.qk_head_dim + mla.v_head_dim), mla.kv_lora_rank, "outputs")
        case "linear_proj":
            return _Matrix(h, heads * (mla.v_head_dim if mla.enabled else attention.kv_channels), "inputs")
        case "linear_fc1":
            halves = 2 if model.activation in GATED_ACTIVATIONS else 1
            return _Matrix(halves * _ffn_width(name, model, number), h, "outputs")
        case "linear_fc2":
            return _Matrix(h, _ffn_width(name, model, number), "inputs")
        case "eh_proj":
            return _Matrix(h, 2 * h, None)
    return _of_mixer(last, model, number)


def _of_mixer(last: str, model: ModelConfig, number: int) -> _Matrix:
    """Return the weight of a linear of a layer that mixes tokens without attention."""
    h, mamba, delta = model.hidden_size, model.mamba, model.delta
    kind = model.blocks.mixing_of(number)
    match last:
        case "in_proj":
            rows = {"mamba": sum(mamba.blocks), "gated_delta": sum(delta.blocks), "kimi_delta": sum(delta.read)}
            return _Matrix(rows.get(kind, 3 * h), h, "outputs")
        case "out_proj":
            return _Matrix(h, {"mamba": mamba.width, "short_conv": h}.get(kind, delta.values), "inputs")
        case "gates_down_proj":
            return _Matrix(sum(delta.gates_down), h, None)
        case "decay_up_proj":
            return _Matrix(delta.decays, delta.value_head_dim, "outputs")
        case "out_gate_up_proj":
            return _Matrix(delta.values, delta.value_head_dim, "outputs")
    raise AssertionError(f"no such linear: {last}")


def _ffn_width(name: str, model: ModelConfig, number: int) -> int:
    if ".shared_experts." in name:
        assert model.moe.shared_expert_intermediate_size is not None
        return model.moe.shared_expert_intermediate_size
    if ".experts." in name:
        return model.moe.ffn_hidden_size or model.ffn_hidden_size
    return model.ffn_width(number)
