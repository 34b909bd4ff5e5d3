"""Sampling against distributions that can be written down."""

import torch
from torch import Tensor, nn

from primus.engine.inference.sampling import generate, next_token


class CountUp(nn.Module):
    """Predicts the next integer modulo the vocabulary with certainty."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(50.0))
        self.vocabulary = vocabulary

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        assert positions.tolist() == [list(range(tokens.shape[1]))]
        return self.scale * nn.functional.one_hot((tokens + 1) % self.vocabulary, self.vocabulary)


def test_generation_continues_the_prompt_and_leaves_it_out() -> None:
    assert generate(CountUp(10), [3, 4], max_new_tokens=4, max_context=8) == [5, 6, 7, 8]


def test_stop_token_ends_generation() -> None:
    assert generate(CountUp(10), [3], max_new_tokens=9, max_context=8, stop_tokens=(6, 99)) == [4, 5]


def test_context_longer_than_the_limit_is_cut_from_the_left() -> None:
    assert generate(CountUp(50), list(range(20)), max_new_tokens=3, max_context=4) == [20, 21, 22]


def test_temperature_zero_takes_the_likeliest() -> None:
    generator = torch.Generator().manual_seed(0)
    assert next_token(torch.tensor([0.0, 2.0, 1.0]), temperature=0.0, top_p=1.0, generator=generator) == 1


def test_top_p_keeps_the_smallest_sufficient_set() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    generator = torch.Generator().manual_seed(0)
    drawn = {next_token(logits, temperature=1.0, top_p=0.7, generator=generator) for _ in range(200)}
    assert drawn == {0, 1}
    assert {next_token(logits, temperature=1.0, top_p=0.5, generator=generator) for _ in range(50)} == {0}


def test_the_likeliest_token_is_always_kept() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.tensor([0.2, 0.5, 0.3]).log()
    assert {next_token(logits, temperature=1.0, top_p=0.0, generator=generator) for _ in range(20)} == {1}
