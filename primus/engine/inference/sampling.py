"""`generate` continues a prompt token by token: temperature, top-p, or greedy at temperature 0.

Each new token runs the whole sequence, so no cache has to agree with training; the context is cut to the last
`max_context` tokens.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn

__all__ = ["generate", "next_token"]


def next_token(logits_V: Tensor, *, temperature: float, top_p: float, generator: torch.Generator) -> int:
    """Draw from the smallest set of tokens whose probability reaches `top_p`, one at least; the likeliest at temperature 0."""
    if temperature == 0.0:
        return int(logits_V.argmax())
    probabilities, order = torch.softmax(logits_V.float() / temperature, dim=-1).sort(descending=True)
    before = probabilities.cumsum(dim=-1) - probabilities
    is_out = before >= top_p
    is_out[0] = False
    kept = probabilities.masked_fill(is_out, 0.0)
    return int(order[torch.multinomial(kept, 1, generator=generator)])


@torch.no_grad()
def generate(
    model: nn.Module,
    prompt: list[int],
    *,
    max_new_tokens: int,
    max_context: int,
    stop_tokens: Collection[int] = (),
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> list[int]:
    """Return the new tokens, without the one of `stop_tokens` that ended them. `model` maps ids [1, s] to logits [1, s, V]."""
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    ids = list(prompt)
    model.eval()
    for _ in range(max_new_tokens):
        context = torch.tensor([ids[-max_context:]], device=device)
        positions = torch.arange(context.shape[1], device=device)[None]
        token = next_token(model(context, positions)[0, -1], temperature=temperature, top_p=top_p, generator=generator)
        if token in stop_tokens:
            break
        ids.append(token)
    return ids[len(prompt) :]
