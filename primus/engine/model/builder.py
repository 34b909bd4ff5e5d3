"""`build_model` turns a configuration into the model chunks of a rank; `build/` has the parts."""

from dataclasses import dataclass

import torch

from primus.engine.config.model import ModelConfig
from primus.engine.config.pipeline import stage_of
from primus.engine.config.recompute import Stretch, stretches
from primus.engine.model.build.ends import LossForm, embedding, output, rotary
from primus.engine.model.build.layer import check_blocks, layer
from primus.engine.model.build.mtp import prediction
from primus.engine.model.build.parts import norm, runner
from primus.engine.model.embedding import Embedding
from primus.engine.model.gpt import GPTModel
from primus.engine.model.initialise import initialise, zero_padding
from primus.engine.model.layer import Decoder
from primus.engine.model.parameter import Place
from primus.engine.model.recompute import Runner
from primus.engine.parallel.lanes import Lanes
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.random import RandomStreams
from primus.errors import ConfigError

__all__ = ["LossForm", "build_model", "model_place"]

_EMBEDDING_WEIGHT = "embedding.word_embeddings.weight"
_PLAIN_LOSS = LossForm()


def build_model(
    config: ModelConfig,
    *,
    mesh: Mesh,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    streams: RandomStreams,
    loss: LossForm = _PLAIN_LOSS,
) -> tuple[GPTModel, ...]:
    """Build this rank's chunks of the model, in the order of their numbers, and fill them (unless `init.perform` is false).

    Without pipelining that is one, the whole model. With `init.meta_device` weights have no memory yet, and no values.
    """
    place = model_place(config, mesh=mesh, dtype=dtype, device=device, streams=streams)
    _check_divisible(config, mesh.tp.size)
    check_blocks(config)
    pipeline, ranks = config.pipeline, mesh.pp.size
    layers = pipeline.stage_layers(config.num_layers, ranks)
    chunks: list[GPTModel] = []
    for number in range(pipeline.num_chunks):
        stage = stage_of(pipeline.placement, ranks, mesh.pp.index, number)
        ends = _Ends(
            is_first=stage == 0,
            is_last=stage == len(layers) - 1,
            are_apart=ranks > 1 and pipeline.placement != "fold",
            embedding=chunks[0].embedding if chunks else None,
        )
        chunks.append(_chunk(config, place, layers[stage], ends, loss))
    if config.init.meta_device:
        return tuple(chunks)
    if config.init.perform:
        initialise(chunks, seed=seed, division=mesh)
    else:
        zero_padding(chunks, tp=mesh.tp)
    return tuple(chunks)


def model_place(
    config: ModelConfig, *, mesh: Mesh, dtype: torch.dtype, device: torch.device | str, streams: RandomStreams
) -> Place:
    """Return where the parts of a model live."""
    return Place(
        tp=mesh.tp,
        cp=mesh.cp,
        cp_exchange=mesh.cp_exchange,
        cp_ring=mesh.cp_ring,
        dp=mesh.dp,
        ep=mesh.ep,
        etp=mesh.etp,
        etp_ep=mesh.etp_ep,
        lanes=Lanes(mesh.device),
        dtype=dtype,
        device=torch.device(device),
        weights_device=torch.device("meta" if config.init.meta_device else device),
        streams=streams,
        sequence_parallel=config.parallel.sequence_parallel and mesh.tp.size > 1,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ends:
    """What a stage has to do with the ends of the model."""

    is_first: bool
    is_last: bool
    are_apart: bool
    """First and last stage lie on two ranks."""
    embedding: Embedding | None
    """The embedding, if an earlier chunk of the rank has it."""


def _chunk(config: ModelConfig, place: Place, layers: range, ends: _Ends, loss: LossForm) -> GPTModel:
    needs_both = config.tie_embeddings or config.mtp.num_layers > 0
    tied_to = _EMBEDDING_WEIGHT if needs_both and ends.are_apart else None
    words = embedding(config, place, tied_to) if ends.is_first else None
    head, further = None, None
    if ends.is_last:
        at_hand = words or ends.embedding
        needs_copy = at_hand is None and config.mtp.num_layers > 0
        if needs_copy:
            at_hand = embedding(config, place, tied_to, is_copy=True)
        head = output(config, place, at_hand, tied_to if config.tie_embeddings else None, loss)
        further = None if at_hand is None else prediction(config, place, layers, at_hand, owns_words=needs_copy)
    decoder = Decoder(
        {number: layer(config, place, number) for number in layers},
        norm(config, place) if ends.is_last else None,
        _runs(config, place, layers),
    )
    return GPTModel(
        embedding=words,
        rotary=rotary(config, place),
        decoder=decoder,
        output_layer=head,
        mtp=further,
        lanes=place.lanes,
    )


def _check_divisible(config: ModelConfig, tp: int) -> None:
    heads, groups = config.attention.num_attention_heads, config.attention.num_query_groups
    parts = {"num_attention_heads": heads, "ffn_hidden_size": config.ffn_hidden_size}
    if not config.attention.mla.enabled:
        parts["rows of the fused QKV projection"] = (heads + 2 * groups) * config.attention.kv_channels
    if config.parallel.sequence_parallel:
        parts["seq_length"] = config.seq_length
    for name, size in parts.items():
        if size % tp:
            raise ConfigError(
                f"{name} ({size}) is not a multiple of tensor_model_parallel_size ({tp}); choose sizes that divide"
            )
    if heads % groups or (groups % tp and tp % groups):
        raise ConfigError(
            f"num_query_groups ({groups}) must divide num_attention_heads ({heads}) and divide, or be a multiple of, "
            f"tensor_model_parallel_size ({tp})"
        )


def _runs(config: ModelConfig, place: Place, numbers: range) -> list[tuple[Stretch, Runner]]:
    return [
        (stretch, runner(config, place, is_recomputed=stretch.is_recomputed))
        for stretch in stretches(config.recompute, numbers)
    ]
