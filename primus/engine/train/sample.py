"""`sample_run`: text from a checkpoint of a run, in one process; adapters are merged into their base."""

import logging
from dataclasses import replace
from pathlib import Path

from primus.engine.checkpoint.folder import complete_iterations, iteration_folder, newest
from primus.engine.checkpoint.load import load_weights
from primus.engine.checkpoint.merged import with_base
from primus.engine.config import ConfigContainer, ParallelConfig, PipelineConfig, serialize
from primus.engine.config.sft import ChatConfig
from primus.engine.data.sft.chat import ChatReader
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


def sample_run(
    config_file: Path,
    *,
    prompt: str,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
    chat: bool = False,
    ckpt_step: int | None = None,
) -> str:
    """Return the continuation of `prompt`, or with `chat` the answer to it, from the newest checkpoint or that of `ckpt_step`.

    InputError if there is no such checkpoint, or tokenizer or chat template cannot read the prompt.
    """
    config = serialize.load(config_file)
    tokenizer = build_tokenizer(config.tokenizer)
    config = with_vocabulary(config, tokenizer)
    context, ends = _question(config, prompt) if chat else (_context(tokenizer, prompt), [])
    _warn_of_length(len(context), max_new_tokens, config.model.seq_length)
    checkpoint = _checkpoint(_checkpoints(config, config_file.absolute().parent), ckpt_step)
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
        checkpoint,
        {**weight_shards(global_parameters([model]), mesh), **buffer_shards([model])},
        mesh=mesh,
        adapt=lambda source: source if config.peft is None else with_base(source, config.model),
    )
    ids = generate(
        model,
        context,
        max_new_tokens=max_new_tokens,
        max_context=config.model.seq_length,
        stop_tokens=(tokenizer.eod, *ends),
        temperature=temperature,
        top_p=top_p,
        seed=seed,
    )
    return continuation(tokenizer, context if prompt or chat else [], ids)


def continuation(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> str:
    """Return the text of `ids` behind a prompt: what stands before a first token, such as a blank, shows only in the whole."""
    before, whole = tokenizer.detokenize(prompt), tokenizer.detokenize([*prompt, *ids])
    return whole[len(before) :] if whole.startswith(before) else tokenizer.detokenize(ids)


def _question(config: ConfigContainer, prompt: str) -> tuple[list[int], list[int]]:
    """Return the ids of a conversation in which a user has said `prompt`, and those that end an answer."""
    rows = config.dataset.sft
    form = ChatConfig() if rows is None else rows.chat_format
    return ChatReader(form, config.tokenizer.model, "all").question(prompt)


def _context(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the ids to continue; an empty prompt starts a document."""
    try:
        return tokenizer.tokenize(prompt) or [tokenizer.eod]
    except ValueError as error:
        raise InputError(
            f"--prompt {prompt!r} cannot be read: the run's NullTokenizer takes ids between blanks, from 0 to "
            f"{tokenizer.eod - 1} ({error})"
        ) from error


def _warn_of_length(given: int, new: int, length: int) -> None:
    if given + new > length:
        log.warning(
            "%d tokens of the prompt and %d new ones are more than the model was trained on (seq_length %d): each new token "
            "sees the last %d only",
            given,
            new,
            length,
            length,
        )


def _checkpoint(base: Path, step: int | None) -> Path:
    """Return the folder of a whole checkpoint, the newest one unless an iteration is named."""
    iteration, _ = newest(base)
    if iteration is None:
        raise InputError(f"{base} holds no whole checkpoint to sample from; train with `save` set first")
    whole = complete_iterations(base)
    if step is not None and step not in whole:
        there = ", ".join(map(str, whole))
        raise InputError(f"--ckpt-step {step}: {base} holds no whole checkpoint of that iteration; there are {there}")
    return iteration_folder(base, iteration if step is None else step)


def _checkpoints(config: ConfigContainer, run_folder: Path) -> Path:
    """Return the folder of the checkpoints; those inside the run folder are looked for where the run lies now."""
    began_in = Path(config.run.folder)
    save = Path(config.checkpoint.save or began_in)
    return run_folder / save.relative_to(began_in) if save.is_relative_to(began_in) else save
