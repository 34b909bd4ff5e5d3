"""How much arithmetic training costs: integers from the configuration, no torch.

The published formula of Megatron's throughput report: 6 = 3 (forward, gradients of input and weight) x 2 (multiply, add) for
each weight of a product that a token meets, causal attention at half the square, recomputation not counted. Routers, norms
and the other parts that are no large products are left out, as there. With adapters: `adapter_flops.py`.
"""

from collections import Counter
from dataclasses import dataclass

from primus.engine.config.model import ModelConfig
from primus.engine.config.peft import PEFTConfig
from primus.engine.model.adapter_flops import adapted_products
from primus.engine.model.products import feed_forward, mixing, pairs
from primus.engine.model.size import padded_vocab_size

__all__ = ["TrainingCost", "training_cost", "training_flops"]


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """Floating-point operations of training, forward and backward."""

    token: int
    """Of a token, but for attention."""
    square: int
    """Of attention in a sample, for each square of a token: its length is taken twice."""

    def flops(self, *, tokens: float, squares: float) -> float:
        """Return those of an iteration on so many tokens; `squares` is the sum over samples of the square of their length."""
        return self.token * tokens + self.square * squares


def training_flops(config: ModelConfig, batch_size: int, peft: PEFTConfig | None = None) -> int:
    """Return the floating-point operations of one iteration on `batch_size` sequences."""
    tokens = batch_size * config.seq_length
    return int(training_cost(config, peft).flops(tokens=tokens, squares=tokens * config.seq_length))


def training_cost(config: ModelConfig, peft: PEFTConfig | None = None) -> TrainingCost:
    """Return what training costs; with `peft` the adapters alone are trained."""
    if peft is not None:
        of_tokens, of_pairs = adapted_products(peft, config)
        return TrainingCost(2 * of_tokens, of_pairs)
    h, depths, kinds = config.hidden_size, config.mtp.num_layers, config.layer_kinds()
    # Those behind the last layer are like it.
    layers = Counter(kinds) + Counter({kinds[-1]: depths})
    of_layers = sum(count * (mixing(config, kind) + feed_forward(config, kind)) for kind, count in layers.items())
    of_tokens = of_layers + depths * 2 * h * h + (1 + depths) * h * padded_vocab_size(config)
    of_pairs = sum(count * pairs(config, kind) for kind, count in layers.items())
    # Causal: half of the pairs meet.
    return TrainingCost(6 * of_tokens, 3 * of_pairs)
