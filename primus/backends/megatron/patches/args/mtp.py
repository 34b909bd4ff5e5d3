"""Multi-token prediction: what its layers need of the others."""

from primus.backends.megatron.params import Params, Problems, Rule
from primus.backends.megatron.patches.args.positions import position_type

__all__ = ["RULES"]


def predictions_go_with(p: Params) -> Problems:
    """Prediction layers read tokens beyond a slice, use the output layer once more, and have no table of positions."""
    if not p["mtp_num_layers"]:
        return
    if p["num_seq_splits"] > 1:
        yield (
            f"{p.where('mtp_num_layers')} does not go with {p.where('num_seq_splits')}: prediction layers read tokens of the "
            "next slice; set num_seq_splits: 1."
        )
    if p["defer_embedding_wgrad_compute"]:
        yield (
            f"{p.where('mtp_num_layers')} does not go with {p.where('defer_embedding_wgrad_compute')}: the output layer is "
            "used once for each depth; set defer_embedding_wgrad_compute: false."
        )
    if position_type(p) == "learned_absolute":
        yield (f"{p.where('mtp_num_layers')} does not go with {p.where('position_embedding_type')}: choose rope, yarn or none.")
    if p["model_type"] != "gpt":
        yield f"{p.where('mtp_num_layers')} does not go with {p.where('model_type')}: set mtp_num_layers: 0."


def predictions_leave_a_token(p: Params) -> Problems:
    """The last depth still has something to predict."""
    length = p["seq_length"] or p["encoder_seq_length"]
    if p["mtp_num_layers"] and length and p["mtp_num_layers"] >= length:
        yield f"{p.where('mtp_num_layers')} looks beyond sequences of {length} tokens: choose less."


RULES: tuple[Rule, ...] = (predictions_go_with, predictions_leave_a_token)
