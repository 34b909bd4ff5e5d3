"""`Routers`: what a step has to do with the routers of a rank's layers, before its forwards and after its update."""

from collections.abc import Iterable

import torch
from torch import Tensor

from primus.engine.config.moe import MoEConfig
from primus.engine.model.gpt import GPTModel
from primus.engine.model.layer import Layer
from primus.engine.model.moe.layer import MoELayer
from primus.engine.model.moe.losses import loss_names
from primus.engine.model.moe.router import Router
from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.mesh import Mesh
from primus.engine.train.sums import TokenCounts

__all__ = ["Routers"]


class Routers:
    """All routers of this rank; none for a dense model."""

    def __init__(self, chunks: Iterable[GPTModel], mesh: Mesh, config: MoEConfig, *, per_token: bool) -> None:
        self._routers = {
            number: layer.mlp.router
            for chunk in chunks
            for number, layer in chunk.decoder.numbered()
            if isinstance(layer, Layer) and isinstance(layer.mlp, MoELayer)
        }
        further = (layer.transformer_layer for chunk in chunks if chunk.mtp is not None for layer in chunk.mtp.layers)
        self._further = [each.mlp.router for each in further if isinstance(each, Layer) and isinstance(each.mlp, MoELayer)]
        self._mesh, self._config, self._per_token = mesh, config, per_token
        self._weight = 0.0
        """Of all losses since they were told: microbatches, or tokens, of all ranks."""
        for router in self._all():
            router.losses.counts_tokens = per_token

    @property
    def need_counts(self) -> bool:
        """Whether losses are means over the tokens of a batch, which then have to be counted before its first forward."""
        return self._per_token and bool(loss_names(self._config))

    def begin(self, *, loss_scale: float, num_microbatches: int, counts: TokenCounts | None = None) -> None:
        """Start a step: tell losses what averages over microbatches and ranks, or over tokens, will take away.

        Gradients will be divided by the number of trained tokens, and a router's losses are means over all that there are.
        """
        if counts is None:
            share, weight = self._mesh.cp.size / num_microbatches, float(self._mesh.dp.size * num_microbatches)
        else:
            share, weight = max(counts.trained, 1.0) / max(counts.real, 1.0), counts.real
        self._weight += weight
        for router in self._all():
            router.losses.begin(loss_scale * share)

    @torch.no_grad()
    def end(self) -> None:
        """Move biases towards an even load by what experts got in the step; all ranks of a stage call it."""
        biased = [router for router in self._all() if router.tokens_per_expert is not None]
        if not biased:
            return
        counts_RE = torch.stack([_not_none(router.tokens_per_expert) for router in biased])
        for group in (self._mesh.tp, self._mesh.dp_cp):
            all_reduce_(counts_RE, group)
        steps_RE = torch.sign(counts_RE.mean(1, keepdim=True) - counts_RE)
        for router, step_E in zip(biased, steps_RE, strict=True):
            _not_none(router.expert_bias).add_(step_E, alpha=router.config.router_bias_update_rate)
            _not_none(router.tokens_per_expert).zero_()

    def notes(self) -> dict[str, float]:
        """Return means of the losses since the last call, without coefficients.

        They are over microbatches, or tokens, and over layers (or of each). All ranks call it together. Layers that predict
        tokens further ahead are left out.
        """
        for router in self._further:
            router.losses.sums.clear()
        names = loss_names(self._config)
        if not names or not self._weight:
            return {}
        table_LN = torch.zeros(len(self._config.layers), len(names), dtype=torch.float64, device=self._mesh.device)
        for number, router in self._routers.items():
            row = self._config.layers.index(number)
            for column, name in enumerate(names):
                table_LN[row, column] = router.losses.sums.pop(name)
        # The ranks of a microbatch have parts of its losses, and stages their own layers.
        means_LN = all_reduce_(table_LN, self._mesh.world) / self._weight
        self._weight = 0.0
        found = dict(zip(names, means_LN.mean(0).tolist(), strict=True))
        if self._config.per_layer_logging:
            for number, row in zip(self._config.layers, means_LN.tolist(), strict=True):
                found |= {f"moe/{name}_layer_{number}": value for name, value in zip(names, row, strict=True)}
        return found

    def _all(self) -> list[Router]:
        return [*self._routers.values(), *self._further]


def _not_none(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
