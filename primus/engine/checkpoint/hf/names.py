"""Whose tensor is whose: a row for each kind of tensor of a family, theirs by ours.

`{e}` is an expert; our tensor of experts is a stack of what a row says of one. Names within a layer are those behind
`decoder.layers.N.` and `model.layers.N.`. Layers that predict further tokens are theirs behind the last.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from primus.engine.config.model import ModelConfig

__all__ = ["FAMILIES", "Form", "Row", "copies_of", "is_ignored", "listed", "row_of"]

Form = Literal["same", "qkv", "halves", "pairs"]


@dataclass(frozen=True, slots=True)
class Row:
    """Their names, and how these tensors are ours."""

    theirs: tuple[str, ...]
    form: Form = "same"
    is_stack: bool = False
    """Theirs is a stack over experts, as ours is."""
    is_transposed: bool = False
    """Their rows are our columns."""

    @property
    def is_of_experts(self) -> bool:
        """Ours is a stack over experts."""
        return self.is_stack or "{e}" in self.theirs[0]


Table = Mapping[str, Row]


def _halves(stem: str, gate: str = "gate_proj", up: str = "up_proj") -> Row:
    return Row((f"{stem}{gate}.weight", f"{stem}{up}.weight"), "halves")


def _heads(kind: str) -> Row:
    q, k, v = (f"self_attn.{name}_proj.{kind}" for name in "qkv")
    return Row((q, k, v), "qkv")


_ENDS = {
    "embedding.word_embeddings.weight": Row(("model.embed_tokens.weight",)),
    "decoder.final_layernorm.weight": Row(("model.norm.weight",)),
    "output_layer.weight": Row(("lm_head.weight",)),
}
_LAYER = {
    "input_layernorm.weight": Row(("input_layernorm.weight",)),
    "self_attention.linear_qkv.weight": _heads("weight"),
    "self_attention.linear_proj.weight": Row(("self_attn.o_proj.weight",)),
    "pre_mlp_layernorm.weight": Row(("post_attention_layernorm.weight",)),
    "mlp.linear_fc1.weight": _halves("mlp."),
    "mlp.linear_fc2.weight": Row(("mlp.down_proj.weight",)),
}
_BIASES = {"self_attention.linear_qkv.bias": _heads("bias")}
_QK_NORMS = {
    "self_attention.q_layernorm.weight": Row(("self_attn.q_norm.weight",)),
    "self_attention.k_layernorm.weight": Row(("self_attn.k_norm.weight",)),
}
_EXPERTS = {
    "mlp.router.weight": Row(("mlp.gate.weight",)),
    "mlp.experts.linear_fc1.weight": _halves("mlp.experts.{e}."),
    "mlp.experts.linear_fc2.weight": Row(("mlp.experts.{e}.down_proj.weight",)),
}
_MIXTRAL = {
    "mlp.router.weight": Row(("block_sparse_moe.gate.weight",)),
    "mlp.experts.linear_fc1.weight": _halves("block_sparse_moe.experts.{e}.", "w1", "w3"),
    "mlp.experts.linear_fc2.weight": Row(("block_sparse_moe.experts.{e}.w2.weight",)),
}
_LATENT = {
    "self_attention.linear_q_proj.weight": Row(("self_attn.q_proj.weight",)),
    "self_attention.linear_q_down_proj.weight": Row(("self_attn.q_a_proj.weight",)),
    "self_attention.q_layernorm.weight": Row(("self_attn.q_a_layernorm.weight",)),
    "self_attention.linear_q_up_proj.weight": Row(("self_attn.q_b_proj.weight",)),
    "self_attention.linear_kv_down_proj.weight": Row(("self_attn.kv_a_proj_with_mqa.weight",)),
    "self_attention.kv_layernorm.weight": Row(("self_attn.kv_a_layernorm.weight",)),
    "self_attention.linear_kv_up_proj.weight": Row(("self_attn.kv_b_proj.weight",)),
    "mlp.router.expert_bias": Row(("mlp.gate.e_score_correction_bias",)),
    "mlp.shared_experts.linear_fc1.weight": _halves("mlp.shared_experts."),
    "mlp.shared_experts.linear_fc2.weight": Row(("mlp.shared_experts.down_proj.weight",)),
}
_STACKS = {
    "self_attention.core_attention.softmax_offset": Row(("self_attn.sinks",)),
    "self_attention.linear_proj.bias": Row(("self_attn.o_proj.bias",)),
    "mlp.router.weight": Row(("mlp.router.weight",)),
    "mlp.router.bias": Row(("mlp.router.bias",)),
    "mlp.experts.linear_fc1.weight": Row(("mlp.experts.gate_up_proj",), "pairs", is_stack=True, is_transposed=True),
    "mlp.experts.linear_fc1.bias": Row(("mlp.experts.gate_up_proj_bias",), "pairs", is_stack=True),
    "mlp.experts.linear_fc2.weight": Row(("mlp.experts.down_proj",), is_stack=True, is_transposed=True),
    "mlp.experts.linear_fc2.bias": Row(("mlp.experts.down_proj_bias",), is_stack=True),
}
FAMILIES: dict[str, Table] = {
    "llama": _LAYER,
    "qwen2": _LAYER | _BIASES,
    "qwen3": _LAYER | _QK_NORMS,
    "qwen3_moe": _LAYER | _QK_NORMS | _EXPERTS,
    "mixtral": _LAYER | _MIXTRAL,
    "deepseek_v3": _LAYER | _LATENT | _EXPERTS,
    "gpt_oss": _LAYER | _BIASES | _STACKS,
}
"""By `model_type` of `config.json`: rows of a layer; the ends of the model are alike."""

_AHEAD = {
    "enorm.weight": Row(("enorm.weight",)),
    "hnorm.weight": Row(("hnorm.weight",)),
    "eh_proj.weight": Row(("eh_proj.weight",)),
    "final_layernorm.weight": Row(("shared_head.norm.weight",)),
}
_COPIES = {"embedding.word_embeddings.weight": "embed_tokens.weight", "output_layer.weight": "shared_head.head.weight"}
"""Their prediction layers have copies of these."""

_OF_A_LAYER = re.compile(r"(decoder|mtp)\.layers\.(\d+)\.(transformer_layer\.)?(.+)")
_ANY_LAYER = re.compile(r"(.*?layers\.)(\d+)(\..+)")


def row_of(family: str, name: str, model: ModelConfig) -> Row | None:
    """Return the row of our tensor with their whole names, but for `{e}`; None if the family has none of the kind."""
    match = _OF_A_LAYER.fullmatch(name)
    if match is None:
        return _ENDS.get(name)
    is_ahead = match[1] == "mtp"
    row = (_AHEAD if is_ahead and not match[3] else FAMILIES[family]).get(match[4])
    number = int(match[2]) + (model.num_layers if is_ahead else 0)
    return row and replace(row, theirs=tuple(f"model.layers.{number}.{theirs}" for theirs in row.theirs))


def copies_of(name: str, model: ModelConfig) -> list[str]:
    """Return the names of the copies that prediction layers have of one of our tensors."""
    copied = _COPIES.get(name)
    numbers = range(model.num_layers, model.num_layers + model.mtp.num_layers)
    return [] if copied is None else [f"model.layers.{number}.{copied}" for number in numbers]


def is_ignored(name: str, model: ModelConfig) -> bool:
    """Tell whether a tensor of theirs may be left aside.

    It is a copy of an embedding or a head, a table that older versions stored, or of a prediction layer that the model lacks.
    """
    if name == "lm_head.weight":
        return model.tie_embeddings
    match = re.match(r"model\.layers\.(\d+)\.", name)
    is_beyond = match is not None and int(match[1]) >= model.num_layers + model.mtp.num_layers
    return name.endswith("rotary_emb.inv_freq") or is_beyond or name in _all_copies(model)


def _all_copies(model: ModelConfig) -> list[str]:
    return [copy for name in _COPIES for copy in copies_of(name, model)]


def listed(names: Iterable[str]) -> str:
    """Return all names in one line: those of several layers once, with the numbers of the layers."""
    layers: dict[tuple[str, str], list[int]] = {}
    for name in names:
        match = _ANY_LAYER.fullmatch(name)
        key = (match[1], match[3]) if match else (name, "")
        layers.setdefault(key, []).extend([int(match[2])] if match else [])
    return ", ".join(f"{before}{_spans(sorted(found))}{after}" for (before, after), found in layers.items())


def _spans(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    return text if len(numbers) < 2 else f"{{{text}}}"
