"""Multi-latent attention: what it has of its own, and what has no meaning beside it."""

from primus.backends.megatron.params import Params, Problems, Rule

__all__ = ["RULES"]


def latent_heads_are_whole(p: Params) -> Problems:
    """Every head has its own keys and values, and none of the norms and layouts of plain heads."""
    if not p["multi_latent_attention"]:
        return
    if p["group_query_attention"]:
        yield (
            f"{p.where('multi_latent_attention')} and {p.where('group_query_attention')} exclude each other: set "
            "group_query_attention: false."
        )
    for key, instead in (
        ("qk_l2_norm", "qk_layernorm norms the latent vectors"),
        ("rotary_interleaved", "pairs are neighbours"),
    ):
        if p[key]:
            yield f"{p.where(key)} does not go with {p.where('multi_latent_attention')} ({instead}): set it to false."


def rotated_channels_are_pairs(p: Params) -> Problems:
    """Rotation turns pairs, and all of them."""
    if not p["multi_latent_attention"]:
        return
    if p["qk_pos_emb_head_dim"] % 2:
        yield f"{p.where('qk_pos_emb_head_dim')}: rotation turns pairs of channels; use an even number."
    if p["rotary_percent"] != 1.0:
        yield (
            f"{p.where('rotary_percent')} does not go with {p.where('multi_latent_attention')}: qk_pos_emb_head_dim says how "
            "many channels turn; set rotary_percent: 1.0."
        )


def positions_are_rotated(p: Params) -> Problems:
    """Latent attention has its rotation; a learned table besides it would be a second scheme."""
    scheme = p["position_embedding_type"]
    if p["multi_latent_attention"] and scheme not in ("rope", "yarn", "none") and not p["use_rotary_position_embeddings"]:
        yield (
            f"{p.where('position_embedding_type')} does not go with {p.where('multi_latent_attention')}, which rotates by "
            "rope_type: use rope."
        )
    if not p["multi_latent_attention"] and p["rope_type"] == "yarn":
        yield f"{p.where('rope_type')} is for multi_latent_attention; for YaRN without it set position_embedding_type: yarn."


RULES: tuple[Rule, ...] = (latent_heads_are_whole, rotated_channels_are_pairs, positions_are_rotated)
