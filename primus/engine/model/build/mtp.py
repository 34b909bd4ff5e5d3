"""The layers that predict tokens further ahead."""

from primus.engine.config.model import ModelConfig
from primus.engine.config.recompute import is_recomputed
from primus.engine.model.build.layer import layer
from primus.engine.model.build.parts import initial, norm, runner
from primus.engine.model.embedding import Embedding
from primus.engine.model.hidden import residual_dtype
from primus.engine.model.mla import ReplicatedLinear
from primus.engine.model.mtp import MultiTokenPrediction, PredictionLayer
from primus.engine.model.parameter import Place

__all__ = ["prediction"]


def prediction(
    config: ModelConfig, place: Place, stage: range, words: Embedding, *, owns_words: bool
) -> MultiTokenPrediction | None:
    """Return all depths, None for a model that predicts the next token alone; their layers are like the model's last.

    They come behind the layers of the last `stage`, and are numbered so.
    """
    if not config.mtp.num_layers:
        return None
    layers = [
        PredictionLayer(
            enorm=norm(config, place),
            hnorm=norm(config, place),
            eh_proj=ReplicatedLinear(place, 2 * config.hidden_size, config.hidden_size, initial=initial(config)),
            transformer_layer=layer(config, place, config.num_layers - 1),
            final_layernorm=norm(config, place),
            residual_dtype=residual_dtype(config, place.dtype),
        )
        for _ in range(config.mtp.num_layers)
    ]
    numbers = range(config.num_layers, config.num_layers + config.mtp.num_layers)
    whole = range(stage.start, numbers.stop)
    runs = [runner(config, place, is_recomputed=is_recomputed(config.recompute, whole, number)) for number in numbers]
    return MultiTokenPrediction(layers, words, runs, owns_words=owns_words)
