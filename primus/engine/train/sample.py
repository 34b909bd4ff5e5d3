"""`sample_run`: text from the newest checkpoint of a run, in one process."""

from dataclasses import replace
from pathlib import Path

from primus.engine.checkpoint.folder import iteration_folder, newest
from primus.engine.checkpoint.load import load_weights
from primus.engine.config import ParallelConfig, PipelineConfig, serialize
from primus.engine.data.tokenizer import build_tokenizer
from primus.engine.inference.sampling import generate
from primus.engine.model.builder import build_model
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.precision import dtype_of
from primus.engine.train.assemble import model_shards
from primus.engine.train.pretrain import choose_device, with_vocabulary
from primus.errors import InputError

__all__ = ["sample_run"]


def sample_run(config_file: Path, *, prompt: str, max_new_tokens: int, temperature: float, top_p: float, seed: int) -> str:
    """Return the continuation of `prompt`; InputError if the run has saved nothing."""
    config = serialize.load(config_file)
    tokenizer = build_tokenizer(config.tokenizer)
    config = with_vocabulary(config, tokenizer)
    base = Path(config.checkpoint.save or config.run.folder)
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
    load_weights(iteration_folder(base, iteration), model_shards([model], mesh), mesh=mesh)
    ids = generate(
        model,
        tokenizer.tokenize(prompt) or [tokenizer.eod],
        max_new_tokens=max_new_tokens,
        max_context=config.model.seq_length,
        stop_token=tokenizer.eod,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
    )
    return tokenizer.detokenize(ids)
