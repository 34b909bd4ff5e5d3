"""Any model whose Hugging Face folder is read: its shape comes from `config.json` there. `hf_path` is required."""

from dataclasses import dataclass
from typing import Any

from primus.backends.megatron_bridge.recipes.finetuning import Family, degrees, finetunings
from primus.backends.megatron_bridge.recipes.model import architecture_in
from primus.backends.megatron_bridge.recipes.pretraining import pretraining
from primus.backends.megatron_bridge.recipes.qwen.values import PRETRAIN
from primus.errors import ConfigError
from primus.hub import model_folder


@dataclass(frozen=True, slots=True)
class _InFolder:
    """The shape in a folder."""

    hf_path: str | None = None
    tokenizer: str | None = None

    def architecture(self, hf_path: str | None) -> dict[str, Any]:
        """Return flat Megatron keys; ConfigError without a folder, InputError if it holds no model of this engine."""
        if hf_path is None:
            raise ConfigError("recipe auto takes the model's shape from hf_path; set it to a folder or a name on the hub")
        return architecture_in(model_folder(hf_path, weights=False))


_FINETUNE = Family(arguments={"eval_interval": 30, "save_interval": 50})
_NEWER = Family(arguments={"packed_sequence": True})

pretrain_config = pretraining(_InFolder(), PRETRAIN, degrees())
finetune_config, sft_config, peft_config = finetunings(_InFolder(), _FINETUNE, _NEWER)
