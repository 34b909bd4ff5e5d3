"""Where the weights and the tokenizer of a Hugging Face model are found before a run starts."""

from dataclasses import replace
from typing import TYPE_CHECKING

from primus.engine.config import ConfigContainer, TokenizerConfig
from primus.errors import InputError
from primus.hub import model_folder

if TYPE_CHECKING:
    from primus.backends.megatron.argument_builder import Built

__all__ = ["with_tokenizer", "with_weights"]


def with_weights(built: "Built", *, plans: bool) -> "Built":
    """Return the run with the folder of `hf_path` in place of its name on the hub.

    InputError if it cannot be had. A run that is only planned does without: its shape is known, and ids stand in for words.
    """
    config = built.config
    name = config.checkpoint.hf_path
    if name is None:
        return built
    try:
        folder = str(model_folder(name, weights=not plans))
    except InputError as error:
        if not plans or config.model.vocab_size is None:
            raise InputError(f"{problem} ({built.origins.get(name, 'default')})" for problem in error.problems) from error
        notice = f"hf_path {name} is not on this machine: its weights and its tokenizer are not looked at."
        return replace(built, config=_without(config, config.model.vocab_size), notices=[*built.notices, notice])
    tokenizer = config.tokenizer
    if tokenizer.model == name:
        tokenizer = replace(tokenizer, model=folder)
    origins = built.origins | ({folder: built.origins[name]} if name in built.origins else {})
    config = replace(config, checkpoint=replace(config.checkpoint, hf_path=folder), tokenizer=tokenizer)
    return replace(built, config=config, origins=origins)


def with_tokenizer(built: "Built") -> ConfigContainer:
    """Return the run with the folder of its tokenizer in place of a name on the hub; InputError if it cannot be had."""
    config = built.config
    name = config.checkpoint.hf_path
    if name is None or config.tokenizer.model != name:
        return config
    return replace(config, tokenizer=replace(config.tokenizer, model=str(model_folder(name, weights=False))))


def _without(config: ConfigContainer, vocab_size: int) -> ConfigContainer:
    tokenizer = TokenizerConfig(type="NullTokenizer", vocab_size=vocab_size - 1)
    return replace(config, checkpoint=replace(config.checkpoint, hf_path=None), tokenizer=tokenizer)
