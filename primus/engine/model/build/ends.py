"""What stands before the first layer and after the last: embedding, rotary tables, output projection and loss."""

from dataclasses import dataclass

from primus.engine.config.model import ModelConfig
from primus.engine.kernels.cross_entropy import deferrable_linear_cross_entropy, linear_cross_entropy
from primus.engine.model.build.parts import initial
from primus.engine.model.embedding import Embedding, PositionEmbedding, VocabParallelEmbedding
from primus.engine.model.hidden import residual_dtype
from primus.engine.model.output import OutputLayer, SumOfLosses
from primus.engine.model.parameter import Place, declare
from primus.engine.model.rotary import RotaryEmbedding
from primus.engine.model.size import padded_vocab_size
from primus.engine.parallel.sharding import Sharding

__all__ = ["LossForm", "embedding", "output", "rotary"]


def embedding(config: ModelConfig, place: Place, tied_to: str | None, *, is_copy: bool = False) -> Embedding:
    """Return the embedding; `tied_to` is the global name of its table if another rank has a copy, or has the original."""
    learned = config.position.type == "learned_absolute"
    rows = config.position.max_position_embeddings
    positions = PositionEmbedding(place, rows, config.hidden_size, initial=initial(config)) if learned else None
    words = VocabParallelEmbedding(
        place,
        padded_vocab_size(config),
        config.hidden_size,
        sharding=_vocabulary_sharding(config, tied_to, is_copy=is_copy),
        initial=initial(config),
    )
    return Embedding(place, words, positions, dropout=config.hidden_dropout, residual_dtype=residual_dtype(config, place.dtype))


@dataclass(frozen=True, kw_only=True, slots=True)
class LossForm:
    """How losses are taken from the last hidden states."""

    in_fp16: bool = False
    """Half-precision logits stay as they are."""
    is_sparse: bool = False
    """Many tokens have no loss, as prompts in fine-tuning."""


def output(config: ModelConfig, place: Place, words: Embedding | None, tied_to: str | None, loss: LossForm) -> OutputLayer:
    """Return the output layer; `words` is the rank's own; where another rank has it, a tied output keeps a copy."""
    if config.tie_embeddings and words is not None:
        weight = words.word_embeddings.weight
    else:
        sharding = _vocabulary_sharding(config, tied_to, is_copy=tied_to is not None)
        weight = declare(place, (padded_vocab_size(config), config.hidden_size), sharding, initial(config))
    form = None if loss.in_fp16 else _sum_of_losses(config, place)
    return OutputLayer(
        place,
        weight,
        vocab_size=_vocab_size(config),
        sum_of_losses=form,
        skips_masked=loss.is_sparse or place.device.type == "cpu",
        cross_entropy_in_fp16=loss.in_fp16,
        soft_cap=config.final_logit_softcapping,
    )


def rotary(config: ModelConfig, place: Place) -> RotaryEmbedding | None:
    """Return the rotary tables, if positions are rotations."""
    if config.position.type not in ("rope", "yarn"):
        return None
    return RotaryEmbedding(
        config.position,
        config.attention.mla.qk_pos_emb_head_dim if config.attention.mla.enabled else config.attention.kv_channels,
        length=config.seq_length,
        cp=place.cp,
        dtype=place.dtype,
        device=place.device,
    )


def _sum_of_losses(config: ModelConfig, place: Place) -> SumOfLosses | None:
    # On the CPU chunks are both faster and smaller (logits stay in the cache), so they need no asking for.
    if not (config.fusion.cross_entropy or place.device.type == "cpu"):
        return None
    return deferrable_linear_cross_entropy if config.pipeline.defers_output_gradient else linear_cross_entropy


def _vocabulary_sharding(config: ModelConfig, tied_to: str | None, *, is_copy: bool = False) -> Sharding:
    return Sharding(dim=0, is_embedding_or_output=True, valid_rows=_vocab_size(config), tied_to=tied_to, is_copy=is_copy)


def _vocab_size(config: ModelConfig) -> int:
    assert config.vocab_size is not None, "vocab_size is filled from the tokenizer before the model is built"
    return config.vocab_size
