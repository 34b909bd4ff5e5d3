"""`sample_run`: text from the newest checkpoint of a run, in one process; adapters are merged into their base."""

import logging
from dataclasses import replace
from pathlib import Path

from primus.engine.checkpoint.folder import iteration_folder, newest
from primus.engine.checkpoint.load import load_weights
from primus.engine.checkpoint.merged import with_base
from primus.engine.config import ConfigContainer, ParallelConfig, PipelineConfig, serialize
from primus.engine.data.tokenizer import Tokenizer, build_tokenizer
from primus.engine.inference.sampling import generate
from primus.engine.model.builder import build_model
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import buffer_shards, global_parameters, weight_shards
from primus.engine.precision import dtype_of
from primus.engine.train.pretrain import choose_device, with_vocabulary
from primus.errors import InputError

__all__ = ["continuation", "sample_run"]

log = logging.getLogger(__name__)


def sample_run(config_file: Path, *, prompt: str, max_new_tokens: int, temperature: float, top_p: float, seed: int) -> str:
    """Return the continuation of `prompt`; InputError if the run has saved nothing or its tokenizer cannot read the prompt."""
    config = serialize.load(config_file)
    tokenizer = build_tokenizer(config.tokenizer)
    config = with_vocabulary(config, tokenizer)
    context = _context(config, tokenizer, prompt, max_new_tokens)
    base = _checkpoints(config, config_file.absolute().parent)
    iteration, _ = newest(base)
    if iteration is None:
        raise InputError(f"{base} holds no whole checkpoint to sample from; train with `save` set first")
    device = choose_device()
    mesh = single_mesh(device)
    (model,) = build_model(
        replace(
            config.model, parallel=ParallelConfig(), pipeline=PipelineConfig(), init=replace(config.model.init, perform=False)
        ),
        mesh=mesh,
        dtype=dtype_of(config.mixed_precision.params_dtype),
        device=device,
        seed=config.rng.seed,
        streams=RandomStreams(config.rng.seed, mesh.coordinates, device),
    )
    load_weights(
        iteration_folder(base, iteration),
        {**weight_shards(global_parameters([model]), mesh), **buffer_shards([model])},
        mesh=mesh,
        adapt=lambda source: source if config.peft is None else with_base(source, config.model),
    )
    ids = generate(
        model,
        context,
        max_new_tokens=max_new_tokens,
        max_context=config.model.seq_length,
        stop_token=tokenizer.eod,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
    )
    return continuation(tokenizer, context if prompt else [], ids)


def continuation(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> str:
    """Return the text of `ids` behind a prompt: what stands before a first token, such as a blank, shows only in the whole."""
    before, whole = tokenizer.detokenize(prompt), tokenizer.detokenize([*prompt, *ids])
    return whole[len(before) :] if whole.startswith(before) else tokenizer.detokenize(ids)


def _context(config: ConfigContainer, tokenizer: Tokenizer, prompt: str, max_new_tokens: int) -> list[int]:
    """Return the ids to continue; an empty prompt starts a document."""
    try:
        ids = tokenizer.tokenize(prompt) or [tokenizer.eod]
    except ValueError as error:
        raise InputError(
            f"--prompt {prompt!r} cannot be read: the run's NullTokenizer takes ids between blanks, from 0 to "
            f"{tokenizer.eod - 1} ({error})"
        ) from error
    length = config.model.seq_length
    if len(ids) + max_new_tokens > length:
        log.warning(
            "%d tokens of the prompt and %d new ones are more than the model was trained on (seq_length %d): each new token "
            "sees the last %d only",
            len(ids),
            max_new_tokens,
            length,
            length,
        )
    return ids


def _checkpoints(config: ConfigContainer, run_folder: Path) -> Path:
    """Return the folder of the checkpoints; those inside the run folder are looked for where the run lies now."""
    began_in = Path(config.run.folder)
    save = Path(config.checkpoint.save or began_in)
    return run_folder / save.relative_to(began_in) if save.is_relative_to(began_in) else save
