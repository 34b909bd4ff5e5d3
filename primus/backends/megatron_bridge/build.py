"""`MegatronBridgeBuilder`: a module of an experiment to the container that the engine reads.

The user's values are merged into what the recipe returns; that is translated to Megatron's flat keys, whose rows, derivations
and rules check it, and what has no such key is put in its place.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from primus.backends.megatron.argument_builder import Built, MegatronArgBuilder
from primus.backends.megatron.keys import KEYS
from primus.backends.megatron_bridge.config_utils import Merged, merged
from primus.backends.megatron_bridge.container import GPTDatasetConfig
from primus.backends.megatron_bridge.rules import broken, broken_targets
from primus.backends.megatron_bridge.translate.adapters import adapters
from primus.backends.megatron_bridge.translate.data import rows
from primus.backends.megatron_bridge.translate.raw import Raw
from primus.backends.megatron_bridge.translate.values import flat_values
from primus.core.experiment import Experiment, Module, Value, is_preset_source, load_presets
from primus.core.keys import show_value
from primus.engine.config import ConfigContainer, PEFTConfig, SFTConfig
from primus.errors import ConfigError

__all__ = ["MegatronBridgeBuilder", "degrees"]

_PRESETS = ("pre_trainer.yaml", "language_model.yaml")
"""What Megatron's keys are where a container says nothing."""


def degrees(module: Module) -> int:
    """Return the ranks of one replica of a module's model; what is wrong is told by the build, and counts as 1."""
    try:
        model = merged(module.nodes).config.model
    except ConfigError:
        return 1
    sizes = (model.tensor_model_parallel_size, model.pipeline_model_parallel_size, model.context_parallel_size)
    dense = math.prod(size if isinstance(size, int) and size > 0 else 1 for size in sizes)
    experts = (model.expert_model_parallel_size or 1) * (model.expert_tensor_parallel_size or model.tensor_model_parallel_size)
    return math.lcm(dense, experts * model.pipeline_model_parallel_size)


class MegatronBridgeBuilder:
    """Turns a module of an experiment into a container for a number of ranks."""

    def __init__(self, experiment: Experiment, module: Module, world_size: int, run_folder: Path) -> None:
        self._experiment, self._module = experiment, module
        self._world_size, self._run_folder = world_size, run_folder

    def build(self) -> Built:
        """Return the container with its sources and notices; ConfigError lists every problem."""
        given = merged(self._module.nodes)
        raw = Raw(config=given.config, sources=given.sources, recipe=str(self._module.params["recipe"].value))
        problems: list[str] = []
        notices: list[str] = list(given.notices)
        peft = adapters(raw, problems, notices)
        data = given.config.dataset
        has_rows = not isinstance(data, GPTDatasetConfig)
        sft = None if isinstance(data, GPTDatasetConfig) else rows(raw, data, problems)
        problems += _starts(raw, peft, has_rows=has_rows)
        problems += broken(raw, self._module.params.get("stage"), str(self._module.params["flavor"].value))
        flat = flat_values(raw, world_size=self._world_size, problems=problems, notices=notices)
        try:
            problems += _said_twice(flat, given.direct)
            built = self._megatron(given, flat, notices, has_rows=has_rows)
        except ConfigError as error:
            raise ConfigError(dict.fromkeys([*problems, *error.problems])) from error
        if peft is not None:
            problems += broken_targets(raw, peft, built.config.model)
        if problems:
            raise ConfigError(dict.fromkeys(problems))
        return Built(
            config=_completed(built.config, raw, peft, sft),
            sources={**built.sources, **_sources(raw)},
            notices=[*notices, *built.notices],
            origins=built.origins | _origins(raw, sft),
        )

    def _megatron(self, given: Merged, flat: Mapping[str, Value], notices: list[str], *, has_rows: bool) -> Built:
        params = load_presets("megatron", *_PRESETS)
        notices += _as_they_are(params, flat)
        for name, value in {**flat, **given.direct}.items():
            below = params.get(name)
            params[name] = value if value.over is not None else replace(value, over=below)
        module = replace(self._module, framework=Value("megatron", self._module.framework.source), params=params)
        return MegatronArgBuilder(self._experiment, module, self._world_size, self._run_folder, has_rows=has_rows).build()


def _said_twice(flat: Mapping[str, Value], direct: Mapping[str, Value]) -> Iterator[str]:
    """Yield keys that a field of the container states otherwise, where the user set both."""
    for name, value in direct.items():
        field = flat.get(name)
        if field is None or field.value == value.value or any(map(is_preset_source, (field.source, value.source))):
            continue
        yield (
            f"{name} {show_value(value.value)} ({value.source}) is also what a field says, and that comes to "
            f"{show_value(field.value)} ({field.source}): keep one of them."
        )


def _as_they_are(presets: Mapping[str, Value], flat: Mapping[str, Value]) -> Iterator[str]:
    """Yield fields that the user changed to what Megatron's presets say of a key that nothing reads."""
    for name, value in flat.items():
        is_preset = name in presets and presets[name].value == value.value
        if KEYS[name].status != "live" and is_preset and not is_preset_source(value.source):
            yield f"{name} {show_value(value.value)} ({value.source}) has no effect: {KEYS[name].reason}."


def _completed(config: ConfigContainer, raw: Raw, peft: PEFTConfig | None, sft: SFTConfig | None) -> ConfigContainer:
    checkpoint = raw.config.checkpoint
    if checkpoint.hf_path is not None and checkpoint.pretrained_checkpoint is None:
        config = replace(config, checkpoint=replace(config.checkpoint, hf_path=checkpoint.hf_path))
    return replace(config, peft=peft, dataset=replace(config.dataset, sft=sft))


def _starts(raw: Raw, peft: PEFTConfig | None, *, has_rows: bool) -> list[str]:
    """Fine-tuning starts from weights."""
    checkpoint = raw.config.checkpoint
    sources = (checkpoint.hf_path, checkpoint.pretrained_checkpoint)
    goes_on = checkpoint.load is not None and checkpoint.load != checkpoint.save and peft is None
    if not has_rows or any(sources) or goes_on:
        return []
    kind = "adapters need the weights that they adapt" if peft is not None else "fine-tuning starts from weights"
    return [
        f"{kind}: set hf_path to a Hugging Face folder or name, or pretrained_checkpoint ({raw.source('checkpoint.hf_path')})."
    ]


def _sources(raw: Raw) -> dict[str, str]:
    """Return the sources of what has no flat key, by the engine's paths."""
    found = {path: source for path, source in raw.sources.items() if path.startswith("peft.")}
    if raw.is_chosen("checkpoint.hf_path"):
        found["checkpoint.hf_path"] = raw.source("checkpoint.hf_path")
    return found


def _origins(raw: Raw, sft: SFTConfig | None) -> dict[str, str]:
    """Return where folders and files were named, for what is found out about them later."""
    found: dict[str, str] = {}
    path = raw.config.checkpoint.hf_path
    if path is not None:
        found[path] = f"hf_path, {raw.source('checkpoint.hf_path')}"
    if sft is not None and Path(sft.train).is_absolute():
        found[sft.train] = f"dataset, {raw.source('dataset.dataset_root', 'dataset.dataset_name')}"
    if sft is not None and sft.packing is not None and sft.packing.train_file is not None:
        found[sft.packing.train_file] = raw.source("dataset.packed_sequence_specs.packed_train_data_path")
    return found
