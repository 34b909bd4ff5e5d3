"""`config.json` as a model of ours. What a model of ours cannot be is refused, all of it in one message."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from primus.engine.checkpoint.hf.names import FAMILIES, row_of
from primus.engine.checkpoint.hf.stored import holds_layer, tensor_names
from primus.engine.config.attention import AttentionConfig, MLAConfig
from primus.engine.config.model import ModelConfig
from primus.engine.config.moe import MoEConfig
from primus.engine.config.mtp import MTPConfig
from primus.engine.config.position import PositionConfig
from primus.errors import InputError

__all__ = ["ADAPTER_CONFIG", "CONFIG", "ORIGINAL", "check_extent", "model_in", "model_of", "read_config"]

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
"""Of the peft library."""
ORIGINAL = "huggingface"
"""Folder in an imported checkpoint: everything of the original but its weights."""

_ONLY: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "swiglu_alpha": (1.702,),
    "partial_rotary_factor": (1, 1.0),
    "rope_interleave": (True,),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "moe_layer_freq": (1,),
}
"""Entries with the values that models of ours have; null and absent are these, too."""
_ROTATIONS = ("default", "linear", "llama3", "yarn")
_DEFAULT_BASE = {"mixtral": 1e6, "gpt_oss": 150000.0}
_DEFAULT_EPSILON = {"mixtral": 1e-5, "gpt_oss": 1e-5}


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's `config.json`; InputError if there is none."""
    file = folder / CONFIG
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}; give the folder of a Hugging Face model") from error
    except ValueError as error:
        raise InputError(f"{file} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{file} holds no map")
    return content


def model_of(content: Mapping[str, Any], where: str) -> tuple[str, ModelConfig]:
    """Return family and model of a `config.json`; InputError, with `where` it lies, lists all that is wrong."""
    family = content.get("model_type")
    if family not in FAMILIES:
        named = ", ".join(map(str, content.get("architectures") or [])) or "no architecture"
        raise InputError(f"{where}: model_type {family} ({named}) is not known; known are {', '.join(sorted(FAMILIES))}")
    reader = _Reader(family, content)
    try:
        model = reader.model()
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{where}: an entry has a value of another kind than the library writes: {error}") from error
    if reader.problems:
        raise InputError([f"{where}: {problem}" for problem in reader.problems])
    return family, model


def model_in(folder: Path) -> tuple[str, ModelConfig]:
    """Return family and model of a folder with weights; errors as `model_of`.

    Folders that the transformers library wrote lack prediction layers, whatever they say.
    """
    family, model = model_of(read_config(folder), str(folder / CONFIG))
    if model.mtp.num_layers and not holds_layer(folder, model.num_layers):
        model = replace(model, mtp=MTPConfig())
    return family, model


def check_extent(folder: Path, family: str, model: ModelConfig) -> None:
    """InputError if `config.json` asks for so many layers or experts that the folder's tensors cannot be as many.

    Which of them are missing is found out later, tensor by tensor; of millions that takes too long.
    """
    found = len(tensor_names(folder))
    asked = {"num_hidden_layers": model.num_layers}
    if model.moe.layers:
        row = row_of(family, f"decoder.layers.{model.moe.layers[0]}.mlp.experts.linear_fc2.weight", model)
        if row is not None and not row.is_stack:
            asked["the number of experts"] = model.moe.num_experts or 0
    problems = [
        f"{folder / CONFIG}: {name} is {count}, and all the weights in {folder} are {found} tensors"
        for name, count in asked.items()
        if found and count > found
    ]
    if problems:
        raise InputError(problems)


class _Reader:
    """Reads entries and gathers what is wrong with them."""

    def __init__(self, family: str, content: Mapping[str, Any]) -> None:
        self._family, self._content = family, content
        self.problems: list[str] = []

    def model(self) -> ModelConfig:
        """Return the model; it means something as long as there are no problems."""
        self._refuse()
        layers = self._size("num_hidden_layers")
        is_clamped = self._family == "gpt_oss"
        return ModelConfig(
            num_layers=layers,
            hidden_size=self._size("hidden_size"),
            ffn_hidden_size=self._size("intermediate_size"),
            seq_length=self._size("max_position_embeddings"),
            vocab_size=self._size("vocab_size"),
            norm_epsilon=self._number("rms_norm_eps", _DEFAULT_EPSILON.get(self._family, 1e-6)),
            activation="quick_geglu" if is_clamped else "swiglu",
            activation_clamp=self._number("swiglu_limit", 7.0) if is_clamped else None,
            glu_linear_offset=1.0 if is_clamped else 0.0,
            add_bias_linear=is_clamped,
            tie_embeddings=bool(self._content.get("tie_word_embeddings", False)),
            attention=self._attention(layers),
            moe=self._experts(layers),
            mtp=MTPConfig(num_layers=int(self._number("num_nextn_predict_layers", 0)) if self._family == "deepseek_v3" else 0),
            position=self._position(),
        )

    def _refuse(self) -> None:
        for name, usable in _ONLY.items():
            value = self._content.get(name)
            if value is not None and value not in usable:
                self.problems.append(f"{name} is {value}; only {usable[0]} can be read")
        if self._content.get("quantization_config") is not None:
            self.problems.append("quantization_config: the weights are quantised; save them in bfloat16 first")
        has_bias = self._family == "gpt_oss"
        if bool(self._content.get("attention_bias", has_bias)) != has_bias:
            self.problems.append(f"attention_bias is {not has_bias}; only {has_bias} can be read")
        if self._family == "deepseek_v3" and not self._content.get("norm_topk_prob", True):
            self.problems.append("norm_topk_prob is false; only true can be read")

    def _attention(self, layers: int) -> AttentionConfig:
        heads = self._size("num_attention_heads")
        if self._family == "deepseek_v3":
            mla = MLAConfig(
                enabled=True,
                q_lora_rank=self._content.get("q_lora_rank"),
                kv_lora_rank=self._size("kv_lora_rank"),
                qk_head_dim=self._size("qk_nope_head_dim"),
                qk_pos_emb_head_dim=self._size("qk_rope_head_dim"),
                v_head_dim=self._size("v_head_dim"),
            )
            channels = max(1, self._size("hidden_size") // heads)
            return AttentionConfig(
                num_attention_heads=heads, num_query_groups=heads, kv_channels=channels, qk_norm="model", mla=mla
            )
        groups, windowed = self._size("num_key_value_heads", heads), self._windowed(layers)
        if heads % groups:
            self.problems.append(f"num_key_value_heads is {groups}; it must divide num_attention_heads, {heads}")
        return AttentionConfig(
            num_attention_heads=heads,
            num_query_groups=groups,
            kv_channels=self._size("head_dim", max(1, self._size("hidden_size") // heads)),
            add_qkv_bias=self._family in ("qwen2", "gpt_oss"),
            qk_norm="model" if self._family in ("qwen3", "qwen3_moe") else "none",
            sinks=self._family == "gpt_oss",
            window=self._size("sliding_window") if windowed else None,
            full_layers=tuple(number for number in range(layers) if number not in windowed) if windowed else (),
        )

    def _windowed(self, layers: int) -> Collection[int]:
        """Return the layers with a window: newer files list them, older ones have a rule of the family."""
        kinds = self._content.get("layer_types")
        if kinds is not None:
            unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
            if unknown or len(kinds) != layers:
                self.problems.append(f"layer_types has {', '.join(unknown) or len(kinds)}; it has one of two kinds a layer")
            return [number for number, kind in enumerate(kinds) if kind == "sliding_attention"]
        if self._content.get("sliding_window") is None or self._family in ("llama", "deepseek_v3"):
            return ()
        if self._family == "gpt_oss":
            return range(0, layers, 2)
        if self._family == "mixtral":
            return range(layers)
        if not self._content.get("use_sliding_window", False):
            return ()
        return range(layers) if self._family == "qwen3_moe" else range(self._size("max_window_layers"), layers)

    def _experts(self, layers: int) -> MoEConfig:
        moe = self._mixture(layers)
        if not self.problems:
            self.problems += _impossible_choice(moe)
        return moe

    def _mixture(self, layers: int) -> MoEConfig:
        if self._family in ("mixtral", "gpt_oss"):
            return MoEConfig(
                num_experts=self._size("num_local_experts"),
                layers=tuple(range(layers)),
                ffn_hidden_size=self._size("intermediate_size"),
                router_topk=self._size("num_experts_per_tok"),
            )
        if self._family == "qwen3_moe":
            step, dense = self._size("decoder_sparse_step", 1), self._content.get("mlp_only_layers") or []
            return MoEConfig(
                num_experts=self._size("num_experts" if "num_experts" in self._content else "num_local_experts"),
                layers=tuple(number for number in range(layers) if number not in dense and (number + 1) % step == 0),
                ffn_hidden_size=self._size("moe_intermediate_size"),
                router_topk=self._size("num_experts_per_tok"),
                router_pre_softmax=not self._content.get("norm_topk_prob", False),
            )
        return self._grouped_experts(layers) if self._family == "deepseek_v3" else MoEConfig()

    def _grouped_experts(self, layers: int) -> MoEConfig:
        first = int(self._number("first_k_dense_replace", 0))
        if first >= layers:
            return MoEConfig()
        experts, topk = self._size("n_routed_experts"), self._size("num_experts_per_tok")
        groups, best = self._size("n_group", 1), self._size("topk_group", 1)
        if groups > 1 and topk != 2 * best:
            self.problems.append(
                f"num_experts_per_tok is {topk} and topk_group {best}: groups are rated by the two best of their experts, and "
                "here by num_experts_per_tok / topk_group"
            )
        width = self._size("moe_intermediate_size")
        shared = int(self._number("n_shared_experts", 0)) * width
        return MoEConfig(
            num_experts=experts,
            layers=tuple(range(first, layers)),
            ffn_hidden_size=width,
            shared_expert_intermediate_size=shared or None,
            router_topk=topk,
            router_dtype="float32",
            router_score_function="sigmoid",
            router_num_groups=groups if groups > 1 else None,
            router_group_topk=best if groups > 1 else None,
            router_topk_scaling_factor=self._number("routed_scaling_factor", 1.0),
            router_enable_expert_bias=True,
            router_load_balancing_type=("none",),
        )

    def _position(self) -> PositionConfig:
        """Newer files have one map of the rotation, older ones the base apart from its scaling."""
        scaling: Mapping[str, Any] = self._content.get("rope_parameters") or self._content.get("rope_scaling") or {}
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        length = self._size("max_position_embeddings")
        base = float(scaling.get("rope_theta") or self._number("rope_theta", _DEFAULT_BASE.get(self._family, 10000.0)))
        if kind == "default" or kind not in _ROTATIONS or (kind != "yarn" and self._family == "deepseek_v3"):
            if kind != "default":
                self.problems.append(f"rope_type is {kind}; known are {', '.join(_ROTATIONS)}")
            return PositionConfig(max_position_embeddings=length, rotary_base=base)
        if not isinstance(scaling.get("factor"), (int, float)):
            self.problems.append(f"rope_type {kind} needs a factor")
            return PositionConfig(max_position_embeddings=length, rotary_base=base)
        factor = float(scaling["factor"])
        if kind == "linear":
            return PositionConfig(max_position_embeddings=length, rotary_base=base, interpolation_factor=factor)
        original = int(scaling.get("original_max_position_embeddings") or length)
        if kind == "llama3":
            return self._llama3(scaling, length, base, factor, original)
        return self._yarn(scaling, length, base, factor, original)

    def _llama3(self, scaling: Mapping[str, Any], length: int, base: float, factor: float, original: int) -> PositionConfig:
        low, high = scaling.get("low_freq_factor", 1), scaling.get("high_freq_factor", 4)
        if (low, high) != (1, 4):
            self.problems.append(f"low_freq_factor and high_freq_factor are {low} and {high}; only 1 and 4 can be read")
        return PositionConfig(
            max_position_embeddings=length,
            rotary_base=base,
            use_rope_scaling=True,
            rope_scaling_factor=factor,
            rope_scaling_context=original,
        )

    def _yarn(self, scaling: Mapping[str, Any], length: int, base: float, factor: float, original: int) -> PositionConfig:
        one, all_dim = scaling.get("mscale") or None, scaling.get("mscale_all_dim") or None
        if scaling.get("attention_factor") is not None or (all_dim is not None and one is None):
            self.problems.append("rope_type yarn has attention_factor, or mscale_all_dim without mscale: these cannot be read")
        return PositionConfig(
            type="yarn",
            max_position_embeddings=length,
            rotary_base=base,
            yarn_scaling_factor=factor,
            yarn_original_max_position_embeddings=original,
            yarn_beta_fast=float(scaling.get("beta_fast") or 32.0),
            yarn_beta_slow=float(scaling.get("beta_slow") or 1.0),
            # Without both of them the rotation has the factor of a weight of 1, and scores have none.
            yarn_mscale=float(one) if one is not None and all_dim is not None else 1.0,
            yarn_mscale_all_dim=float(all_dim) if one is not None and all_dim is not None else 0.0,
            yarn_correction_range_round_to_int=bool(scaling.get("truncate", True)),
        )

    def _size(self, name: str, default: int | None = None) -> int:
        value = self._content.get(name)
        value = default if value is None else value
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        problem = f"{name} is missing" if value is None else f"{name} is {value!r}; it is a number above 0"
        if problem not in self.problems:
            self.problems.append(problem)
        return 1

    def _number(self, name: str, default: float) -> float:
        value = self._content.get(name)
        value = default if value is None else value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        self.problems.append(f"{name} is {value!r}; it is a number")
        return default


def _impossible_choice(moe: MoEConfig) -> Iterator[str]:
    """Tell of tokens that ask for more experts than they can have."""
    experts, topk, groups, best = moe.num_experts, moe.router_topk, moe.router_num_groups, moe.router_group_topk
    if experts is None:
        return
    if topk > experts:
        yield f"num_experts_per_tok is {topk}; it is at most the number of experts, {experts}"
    if groups is None or best is None:
        return
    if experts % groups:
        yield f"n_group is {groups}; it must divide n_routed_experts, {experts}"
    elif best > groups:
        yield f"topk_group is {best}; it is at most n_group, {groups}"
    elif topk > (reach := experts // groups * best):
        yield f"num_experts_per_tok is {topk}; topk_group {best} of n_group {groups} have {reach} experts"
