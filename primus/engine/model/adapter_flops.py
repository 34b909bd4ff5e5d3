"""How many multiplications training takes where adapters alone are trained: integers from the configuration, no torch.

A frozen product has no gradient of its weight, and one of its input where an adapter stands before it; so what lies before the
first adapter has a forward alone. An adapter has all three but for what it reads. Attention has all its gradients or none. The
products of DoRA's row norms, which do not grow with the tokens, are left out.
"""

from collections.abc import Iterable, Sequence

from primus.engine.config.blocks import LayerKind
from primus.engine.config.linears import linear_names, targets
from primus.engine.config.model import ModelConfig
from primus.engine.config.peft import PEFTConfig
from primus.engine.model.adapter_size import factor_sizes, linear_size
from primus.engine.model.products import feed_forward, mixing, pairs
from primus.engine.model.size import padded_vocab_size

__all__ = ["adapted_products"]

_SCANS = ("mamba", "gated_delta", "kimi_delta")
"""Mixers whose rule multiplies activations with one another, as attention does."""
_LAST = ("linear_proj", "out_proj", "linear_fc2")
_BEFORE = {
    "linear_q_up_proj": "linear_q_down_proj",
    "linear_kv_up_proj": "linear_kv_down_proj",
    "decay_up_proj": "gates_down_proj",
    "out_gate_up_proj": "gates_down_proj",
}
"""What stands before the linears that do not read what enters a layer."""


def adapted_products(peft: PEFTConfig, config: ModelConfig) -> tuple[int, int]:
    """Return the multiplications of a token forward and backward, but for attention, and those of attention for each pair."""
    walk = _Walk(peft, config)
    linears: dict[str, list[str]] = {}
    for name in linear_names(config):
        linears.setdefault(_layer_of(name), []).append(name)
    for number, kind in enumerate(config.layer_kinds()):
        walk.layer(linears.get(f"decoder.layers.{number}", ()), kind)
    head = config.hidden_size * padded_vocab_size(config)
    walk.frozen(head)
    for depth in range(config.mtp.num_layers):
        prefix = f"mtp.layers.{depth}"
        walk.half([f"{prefix}.eh_proj"], 2 * config.hidden_size**2)
        walk.layer(linears.get(f"{prefix}.transformer_layer", ()), config.layer_kinds()[-1])
        walk.frozen(head)
    return walk.products, walk.pairs


class _Walk:
    """Goes through a model from its first product to the last."""

    def __init__(self, peft: PEFTConfig, config: ModelConfig) -> None:
        self.products = self.pairs = 0
        self._peft, self._config, self._parts = peft, config, targets(peft, config).parts
        self._flows = False
        """Whether what comes next has an adapter before it, and its input a gradient."""

    def frozen(self, products: int) -> None:
        """Count a product that has no adapter."""
        self.products += products * (1 + self._flows)

    def layer(self, linears: Sequence[str], kind: LayerKind) -> None:
        """Count both halves of a layer that has these linears."""
        mixers = [name for name in linears if ".mlp." not in name]
        ends = [name for name in mixers if name.endswith(_LAST)]
        # Scores, or the rule of a scan: two gradients of one product.
        core = 1 + 2 * (self._flows or self._has_adapter(name for name in mixers if name not in ends))
        self.pairs += core * pairs(self._config, kind)
        self.half(mixers, mixing(self._config, kind), core if kind.mixing in _SCANS else 1 + self._flows)
        self.half([name for name in linears if ".mlp." in name], feed_forward(self._config, kind))

    def half(self, linears: Sequence[str], products: int, core: int | None = None) -> None:
        """Count linears, and what else a half has of `products`, `core` times; what follows has them before it.

        `core` None: as any frozen product.
        """
        rest = products
        for name in linears:
            times = 1 if ".experts." not in name else self._config.moe.router_topk
            has_gradient = self._flows or self._has_adapter(_before(name, linears))
            size = times * linear_size(name, self._config)
            rest -= size
            self.products += size * (1 + has_gradient)
            if name in self._parts:
                a, b = factor_sizes(self._peft, self._config, name, self._parts[name])
                self.products += times * (a * (2 + has_gradient) + 3 * b)
        self.products += rest * (1 + self._flows if core is None else core)
        self._flows = self._flows or self._has_adapter(linears)

    def _has_adapter(self, names: Iterable[str]) -> bool:
        return any(name in self._parts for name in names)


def _layer_of(name: str) -> str:
    """Return the layer that a linear is in."""
    return name.split(".self_attention.")[0].split(".mixer.")[0].split(".mlp.")[0]


def _before(name: str, linears: Sequence[str]) -> list[str]:
    """Return the linears of the same half that a linear reads from."""
    prefix, _, last = name.rpartition(".")
    if last == "linear_fc2":
        return [f"{prefix}.linear_fc1"]
    if last in _LAST:
        return [other for other in linears if other != name]
    return [f"{prefix}.{_BEFORE[last]}"] if last in _BEFORE else []
