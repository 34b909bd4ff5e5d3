"""Keys of latent attention: what reaches the container, and what is refused."""

from typing import Any

import pytest

MLA: dict[str, Any] = {"multi_latent_attention": True}


def test_latent_attention_rotates_by_its_own_key(build: Any) -> None:
    for given, scheme in ((None, "yarn"), ("yarn", "yarn"), ("rope", "rope")):
        model = build({**MLA, "rope_type": given}).config.model
        assert model.position.type == scheme
        assert model.attention.mla.enabled
    assert build({**MLA, "position_embedding_type": "none"}).config.model.position.type == "yarn"
    assert not build({}).config.model.attention.mla.enabled


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"group_query_attention": True, "num_query_groups": 2}, "set group_query_attention: false"),
        ({"qk_l2_norm": True}, "qk_l2_norm true (exp.yaml:"),
        ({"rotary_interleaved": True}, "rotary_interleaved true (exp.yaml:"),
        ({"qk_pos_emb_head_dim": 5}, "use an even number"),
        ({"rotary_percent": 0.5}, "set rotary_percent: 1.0"),
        ({"position_embedding_type": "learned_absolute"}, "use rope"),
        ({"multi_latent_attention": False, "rope_type": "yarn"}, "set position_embedding_type: yarn"),
        ({"q_lora_rank": 0}, "q_lora_rank"),
        ({"rope_type": "alibi"}, "rope_type"),
        ({"rotary_scaling_factor": 0.0}, "must be above 0"),
        ({"rotary_base": 1}, "must be above 1 with YaRN, which multi_latent_attention true (exp.yaml:"),
        ({"rotary_base": 1, "rope_type": "yarn"}, "must be above 1 with rope_type yarn (exp.yaml:"),
        ({"use_rope_scaling": True, "rope_type": "yarn"}, "needs rope_type rope (it is rope_type yarn (exp.yaml:"),
    ],
    ids=str,
)
def test_refused(problems_of: Any, keys: dict[str, Any], message: str) -> None:
    problems = problems_of({**MLA, **keys})
    assert any(message in problem for problem in problems), problems


def test_heads_need_not_share_the_hidden_size(build: Any) -> None:
    model = build({**MLA, "hidden_size": 40, "num_attention_heads": 6, "kv_channels": None}).config.model
    assert model.attention.kv_channels == model.attention.mla.score_channels
    assert build({**MLA, "kv_channels": 7}).config.model.attention.kv_channels == model.attention.mla.score_channels
