"""The layers that predict tokens further ahead."""

from primus.engine.config.model import ModelConfig
from primus.engine.model.build.layer import layer
from primus.engine.model.build.parts import initial, norm
from primus.engine.model.embedding import Embedding
from primus.engine.model.mla import ReplicatedLinear
from primus.engine.model.mtp import MultiTokenPrediction, PredictionLayer
from primus.engine.model.parameter import Place
from primus.engine.model.recompute import Recompute, keep

__all__ = ["prediction"]


def prediction(config: ModelConfig, place: Place, words: Embedding, *, owns_words: bool) -> MultiTokenPrediction | None:
    """Return all depths, None for a model that predicts the next token alone; their layers are like the model's last."""
    if not config.mtp.num_layers:
        return None
    layers = [
        PredictionLayer(
            enorm=norm(config, place),
            hnorm=norm(config, place),
            eh_proj=ReplicatedLinear(place, 2 * config.hidden_size, config.hidden_size, initial=initial(config)),
            transformer_layer=layer(config, place, config.num_layers - 1),
            final_layernorm=norm(config, place),
        )
        for _ in range(config.mtp.num_layers)
    ]
    run = Recompute(place.streams) if config.recompute.granularity == "full" else keep
    return MultiTokenPrediction(layers, words, run, owns_words=owns_words)
