"""Rows of section 10.5: multi-latent attention, and the YaRN values it shares with ordinary attention."""

from primus.backends.megatron.keys.row import live, section

__all__ = ["ROWS"]

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "10.5",
    live("multi_latent_attention", "bool", "model.attention.mla.enabled",
            doc="Build keys and values from a small latent vector instead of projecting them directly."),
    live("q_lora_rank", "int?", "model.attention.mla.q_lora_rank", minimum=1,
            doc="Width of the latent vector of queries. Null projects them directly."),
    live("kv_lora_rank", "int", "model.attention.mla.kv_lora_rank", minimum=1,
            doc="Width of the latent vector of keys and values."),
    live("qk_head_dim", "int", "model.attention.mla.qk_head_dim", minimum=1,
            doc="Channels of a query or key head that are not rotated."),
    live("qk_pos_emb_head_dim", "int", "model.attention.mla.qk_pos_emb_head_dim", minimum=1,
            doc="Channels of a query or key head that are rotated, an even number; the key's are shared by all heads."),
    live("v_head_dim", "int", "model.attention.mla.v_head_dim", minimum=1,
            doc="Channels of a value head."),
    live("rotary_scaling_factor", "float", "model.position.yarn_scaling_factor", minimum=0,
         doc="How many times longer than the original context YaRN reaches; not the factor of `use_rope_scaling`. "
             "Acts with YaRN only."),
    live("mscale", "float", "model.position.yarn_mscale",
         doc="YaRN: weight of the attention temperature on the rotated channels."),
    live("mscale_all_dim", "float", "model.position.yarn_mscale_all_dim",
         doc="YaRN: weight of the attention temperature on all channels; equal to `mscale` it leaves the rotation alone."),
)
