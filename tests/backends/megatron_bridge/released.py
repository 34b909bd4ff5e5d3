"""What `config.json` of released models says of their shape."""

from typing import Any

_LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _dense(
    model_type: str, layers: int, hidden: int, ffn: int, heads: int, groups: int, vocab: int, **entries: Any
) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": vocab,
        **entries,
    }


def _llama(*shape: int, **entries: Any) -> dict[str, Any]:
    return _dense("llama", *shape, **{"rms_norm_eps": 1e-5, **entries})


def _llama3(layers: int, hidden: int, ffn: int, heads: int, **entries: Any) -> dict[str, Any]:
    ends = {"rope_theta": 500000.0, "max_position_embeddings": 8192, **entries}
    return _llama(layers, hidden, ffn, heads, 8, 128256, **ends)


def _llama31(*shape: int, factor: float = 8.0, **entries: Any) -> dict[str, Any]:
    scaling = {**_LLAMA3_SCALING, "factor": factor}
    return _llama3(*shape, max_position_embeddings=131072, rope_scaling=scaling, **entries)


def _qwen2(*shape: int, positions: int = 131072, epsilon: float = 1e-6, tied: bool = False) -> dict[str, Any]:
    ends = {"rope_theta": 1e6, "rms_norm_eps": epsilon, "tie_word_embeddings": tied, "max_position_embeddings": positions}
    return _dense("qwen2", *shape, **ends, use_sliding_window=False)


def _qwen3(*shape: int, kind: str = "qwen3", tied: bool = False, **entries: Any) -> dict[str, Any]:
    ends = {"head_dim": 128, "rope_theta": 1e6, "rms_norm_eps": 1e-6, "max_position_embeddings": 40960}
    return _dense(kind, *shape, 151936, **ends, tie_word_embeddings=tied, **entries)


def _qwen3_moe(layers: int, hidden: int, ffn: int, heads: int, expert: int) -> dict[str, Any]:
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": expert, "norm_topk_prob": True}
    return _qwen3(layers, hidden, ffn, heads, 4, kind="qwen3_moe", decoder_sparse_step=1, mlp_only_layers=[], **experts)


def _mixtral(layers: int, hidden: int, ffn: int, heads: int, vocab: int, positions: int) -> dict[str, Any]:
    ends = {"rope_theta": 1e6, "rms_norm_eps": 1e-5, "max_position_embeddings": positions}
    return _dense("mixtral", layers, hidden, ffn, heads, 8, vocab, num_local_experts=8, num_experts_per_tok=2, **ends)


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    yarn = {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    }
    return _dense(
        "gpt_oss",
        layers,
        2880,
        2880,
        64,
        8,
        201088,
        head_dim=64,
        num_local_experts=experts,
        num_experts_per_tok=4,
        sliding_window=128,
        swiglu_limit=7.0,
        rms_norm_eps=1e-5,
        rope_theta=150000,
        rope_scaling=yarn,
        max_position_embeddings=131072,
        attention_bias=True,
        layer_types=["sliding_attention", "full_attention"] * (layers // 2),
    )


_DEEPSEEK_V3 = _dense(
    "deepseek_v3",
    61,
    7168,
    18432,
    128,
    128,
    129280,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    moe_intermediate_size=2048,
    n_group=8,
    topk_group=4,
    routed_scaling_factor=2.5,
    first_k_dense_replace=3,
    num_nextn_predict_layers=1,
    rms_norm_eps=1e-6,
    rope_theta=10000,
    max_position_embeddings=163840,
    rope_scaling={
        "type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
)
_MOONLIGHT = _dense(
    "deepseek_v3",
    27,
    2048,
    11264,
    16,
    16,
    163840,
    q_lora_rank=None,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    n_routed_experts=64,
    n_shared_experts=2,
    num_experts_per_tok=6,
    moe_intermediate_size=1408,
    n_group=1,
    topk_group=1,
    routed_scaling_factor=2.446,
    first_k_dense_replace=1,
    num_nextn_predict_layers=0,
    rms_norm_eps=1e-5,
    rope_theta=50000.0,
    max_position_embeddings=8192,
)

RELEASED: dict[tuple[str, str], dict[str, Any]] = {
    ("llama.llama2", "llama2_7b"): _llama(32, 4096, 11008, 32, 32, 32000, max_position_embeddings=4096),
    ("llama.llama2", "llama2_13b"): _llama(40, 5120, 13824, 40, 40, 32000, max_position_embeddings=4096),
    ("llama.llama2", "llama2_70b"): _llama(80, 8192, 28672, 64, 8, 32000, max_position_embeddings=4096),
    ("llama.llama3", "llama3_8b"): _llama3(32, 4096, 14336, 32),
    ("llama.llama3", "llama3_70b"): _llama3(80, 8192, 28672, 64),
    ("llama.llama3", "llama31_8b"): _llama31(32, 4096, 14336, 32),
    ("llama.llama3", "llama31_70b"): _llama31(80, 8192, 28672, 64),
    ("llama.llama3", "llama31_405b"): _llama31(126, 16384, 53248, 128),
    ("llama.llama3", "llama32_1b"): _llama31(16, 2048, 8192, 32, factor=32.0, head_dim=64, tie_word_embeddings=True),
    ("llama.llama3", "llama32_3b"): _llama31(28, 3072, 8192, 24, factor=32.0, head_dim=128, tie_word_embeddings=True),
    ("qwen.qwen2", "qwen2_500m"): _qwen2(24, 896, 4864, 14, 2, 151936, tied=True),
    ("qwen.qwen2", "qwen2_1p5b"): _qwen2(28, 1536, 8960, 12, 2, 151936, tied=True),
    ("qwen.qwen2", "qwen2_7b"): _qwen2(28, 3584, 18944, 28, 4, 152064),
    ("qwen.qwen2", "qwen2_72b"): _qwen2(80, 8192, 29568, 64, 8, 152064, epsilon=1e-5),
    ("qwen.qwen2", "qwen25_500m"): _qwen2(24, 896, 4864, 14, 2, 151936, tied=True, positions=32768),
    ("qwen.qwen2", "qwen25_1p5b"): _qwen2(28, 1536, 8960, 12, 2, 151936, tied=True),
    ("qwen.qwen2", "qwen25_7b"): _qwen2(28, 3584, 18944, 28, 4, 152064),
    ("qwen.qwen2", "qwen25_14b"): _qwen2(48, 5120, 13824, 40, 8, 152064, epsilon=1e-5),
    ("qwen.qwen2", "qwen25_32b"): _qwen2(64, 5120, 27648, 40, 8, 152064, epsilon=1e-5),
    ("qwen.qwen2", "qwen25_72b"): _qwen2(80, 8192, 29568, 64, 8, 152064, epsilon=1e-5),
    ("qwen.qwen3", "qwen3_600m"): _qwen3(28, 1024, 3072, 16, 8, tied=True),
    ("qwen.qwen3", "qwen3_1p7b"): _qwen3(28, 2048, 6144, 16, 8, tied=True),
    ("qwen.qwen3", "qwen3_4b"): _qwen3(36, 2560, 9728, 32, 8, tied=True),
    ("qwen.qwen3", "qwen3_8b"): _qwen3(36, 4096, 12288, 32, 8),
    ("qwen.qwen3", "qwen3_14b"): _qwen3(40, 5120, 17408, 40, 8),
    ("qwen.qwen3", "qwen3_32b"): _qwen3(64, 5120, 25600, 64, 8),
    ("qwen.qwen3_moe", "qwen3_30b_a3b"): _qwen3_moe(48, 2048, 6144, 32, 768),
    ("qwen.qwen3_moe", "qwen3_235b_a22b"): _qwen3_moe(94, 4096, 12288, 64, 1536),
    ("mixtral.mixtral", "mixtral_8x7b"): _mixtral(32, 4096, 14336, 32, 32000, 32768),
    ("mixtral.mixtral", "mixtral_8x22b"): _mixtral(56, 6144, 16384, 48, 32768, 65536),
    ("deepseek.deepseek_v3", "deepseek_v3"): _DEEPSEEK_V3,
    ("moonlight.moonlight_16b", "moonlight_16b"): _MOONLIGHT,
    ("gpt_oss.gpt_oss", "gpt_oss_20b"): _gpt_oss(24, 32),
    ("gpt_oss.gpt_oss", "gpt_oss_120b"): _gpt_oss(36, 128),
}
"""By recipe and model: every recipe that starts from a folder of weights."""
