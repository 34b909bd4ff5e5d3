"""What follows from the fields that a user decided: `draw_consequences` lets those of the recipe give way to them."""

from primus.backends.megatron_bridge.container import ConfigContainer, GPTDatasetConfig, HFDatasetConfig
from primus.core.experiment import is_preset_source
from primus.core.experiment.value import RECIPE_PREFIX

__all__ = ["draw_consequences"]


def draw_consequences(config: ConfigContainer, sources: dict[str, str]) -> None:
    """Change fields that nobody but the recipe or a preset decided, in place; `sources` tells where the others were."""
    _decay(config, sources)
    _samples(config, sources)
    _length(config, sources)
    _rows(config, sources)
    _checkpoints(config, sources)
    _seeds(config, sources)
    _vocabulary(config, sources)


def _decay(config: ConfigContainer, sources: dict[str, str]) -> None:
    """Let a weight decay act although the recipe has a schedule for it."""
    if decay := sources.get("optimizer.weight_decay"):
        for end in ("start_weight_decay", "end_weight_decay"):
            if f"scheduler.{end}" not in sources:
                setattr(config.scheduler, end, config.optimizer.weight_decay)
                sources[f"scheduler.{end}"] = decay


def _samples(config: ConfigContainer, sources: dict[str, str]) -> None:
    """Let a length in samples take the place of what the recipe counts in iterations."""
    if config.train.train_samples is None or "train.train_iters" in sources:
        return
    config.train.train_iters = None
    if "scheduler.lr_warmup_iters" not in sources:
        config.scheduler.lr_warmup_iters = 0
    if "scheduler.lr_decay_iters" not in sources:
        config.scheduler.lr_decay_iters = None


def _length(config: ConfigContainer, sources: dict[str, str]) -> None:
    """Give model, data and packs one length."""
    model, data = "model.seq_length", "dataset.seq_length"
    if model in sources and data not in sources:
        config.dataset.seq_length = config.model.seq_length
    if data in sources and model not in sources:
        config.model.seq_length = config.dataset.seq_length
    if isinstance(config.dataset, GPTDatasetConfig) or config.dataset.seq_length is None:
        return
    specs, size = config.dataset.packed_sequence_specs, "dataset.packed_sequence_specs.packed_sequence_size"
    if specs is not None and size not in sources and specs.packed_sequence_size > 0:
        specs.packed_sequence_size = config.dataset.seq_length


def _rows(config: ConfigContainer, sources: dict[str, str]) -> None:
    """Let a folder of rows take the place of a data set that only a recipe or a preset names."""
    data, name = config.dataset, "dataset.dataset_name"
    if isinstance(data, HFDatasetConfig) and data.dataset_root and is_preset_source(sources.get(name, RECIPE_PREFIX)):
        data.dataset_name = None
        sources.pop(name, None)


def _checkpoints(config: ConfigContainer, sources: dict[str, str]) -> None:
    """Let a run go on from where it saves, wherever that is: a recipe's `load` is its `save`."""
    if "checkpoint.save" in sources and "checkpoint.load" not in sources:
        config.checkpoint.load = config.checkpoint.save
        if config.checkpoint.save is None and "checkpoint.save_interval" not in sources:
            config.checkpoint.save_interval = None


def _seeds(config: ConfigContainer, sources: dict[str, str]) -> None:
    """Let the seed of a run order its documents too."""
    if isinstance(config.dataset, GPTDatasetConfig) and "rng.seed" in sources and "dataset.random_seed" not in sources:
        config.dataset.random_seed = config.rng.seed


def _vocabulary(config: ConfigContainer, sources: dict[str, str]) -> None:
    """Give a model and its null tokenizer one vocabulary: the tokenizer's ids, and one that ends a document."""
    model, tokenizer = "model.vocab_size", "tokenizer.vocab_size"
    if config.tokenizer.tokenizer_type != "NullTokenizer":
        return
    if model in sources and tokenizer not in sources and config.model.vocab_size is not None:
        config.tokenizer.vocab_size = config.model.vocab_size - 1
        sources[tokenizer] = sources[model]
    if tokenizer in sources and model not in sources and config.tokenizer.vocab_size is not None:
        config.model.vocab_size = config.tokenizer.vocab_size + 1
