"""Where the files and folders of a run were named, for what is found out about them after the keys are gone."""

from collections.abc import Iterator

from primus.backends.megatron.params import Params
from primus.backends.megatron.patches.args.data import source_prefixes
from primus.backends.megatron.patches.args.logging import tensorboard_folder, wandb_folder
from primus.backends.megatron.patches.args.tokenizer import tokenizer_model
from primus.backends.megatron.patches.args.tp_overlap import path_of_map

__all__ = ["path_origins"]

_INPUTS = ("vocab_file", "merge_file", "data_cache_path", "load", "pretrained_checkpoint")
_OUTPUTS = ("save", "non_persistent_global_ckpt_dir", "non_persistent_local_ckpt_dir")


def path_origins(p: Params) -> dict[str, str]:
    """Return `key, source` by the absolute path that a key stands for; paths that nobody named are not in it."""
    return {path: f"{key}, {p.source(key)}" for key, path in _named(p) if path is not None}


def _named(p: Params) -> Iterator[tuple[str, str | None]]:
    for prefix, key in source_prefixes(p).items():
        yield key, prefix
    yield "tokenizer_model", tokenizer_model(p)
    for key in _INPUTS:
        yield key, None if p[key] is None else p.input_path(p[key])
    yield "tp_comm_overlap_cfg", path_of_map(p)
    for key in _OUTPUTS:
        yield key, None if p[key] is None else p.output_path(p[key])
    for key, folder in (("tensorboard_dir", tensorboard_folder(p)), ("wandb_save_dir", wandb_folder(p))):
        yield key, folder if p[key] else None
