"""One transformer layer, and the stack of them with its final norm."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from torch import Tensor, nn

from primus.engine.config.recompute import Stretch
from primus.engine.kernels.segments import Mask
from primus.engine.model.dropout import BiasDropoutAdd
from primus.engine.model.moe.real import RealTokens
from primus.engine.model.recompute import Runner
from primus.engine.model.rotary import RotaryTables
from primus.engine.model.slices import SequenceSlice

__all__ = ["Decoder", "Layer", "residual_after_norm", "residual_before_norm"]

Residual = Callable[[Tensor, Tensor], Tensor]
"""Chooses what a half of the layer is added to, from its input before and after the norm."""


def residual_before_norm(x: Tensor, normed: Tensor) -> Tensor:
    """Add to the norm's input: the usual pre-norm wiring."""
    return x


def residual_after_norm(x: Tensor, normed: Tensor) -> Tensor:
    """Add to the norm's output (`apply_residual_connection_post_layernorm`)."""
    return normed.to(x.dtype)


class Layer(nn.Module):
    """Norm, attention, add, norm, feed-forward, add; a half that is None is left out together with its norm.

    What a half gives may pass a norm of its own before it is added (Gemma 2, arXiv 2408.00118).
    """

    def __init__(
        self,
        *,
        input_layernorm: nn.Module | None,
        self_attention: nn.Module | None,
        pre_mlp_layernorm: nn.Module | None,
        mlp: nn.Module | None,
        add: BiasDropoutAdd,
        residual: Residual,
        post_self_attn_layernorm: nn.Module | None = None,
        post_mlp_layernorm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.input_layernorm, self.self_attention = input_layernorm, self_attention
        self.pre_mlp_layernorm, self.mlp = pre_mlp_layernorm, mlp
        self.post_self_attn_layernorm, self.post_mlp_layernorm = post_self_attn_layernorm, post_mlp_layernorm
        self.add, self.residual = add, residual

    def forward(
        self,
        x_SBH: Tensor,
        tables: RotaryTables | None,
        mask: Mask,
        part: SequenceSlice | None = None,
        real: RealTokens | None = None,
    ) -> Tensor:
        if self.self_attention is not None and self.input_layernorm is not None:
            normed = self.input_layernorm(x_SBH)
            y, bias = _normed(self.self_attention(normed, tables, mask, part), self.post_self_attn_layernorm)
            x_SBH = self.add(y, bias, self.residual(x_SBH, normed))
        if self.mlp is not None and self.pre_mlp_layernorm is not None:
            normed = self.pre_mlp_layernorm(x_SBH)
            y, bias = _normed(self.mlp(normed, real), self.post_mlp_layernorm)
            x_SBH = self.add(y, bias, self.residual(x_SBH, normed))
        return x_SBH


def _normed(given: tuple[Tensor, Tensor | None], norm: nn.Module | None) -> tuple[Tensor, Tensor | None]:
    """Return the norm of an output with its bias; without a norm both as they are."""
    y, bias = given
    return given if norm is None else (norm(y if bias is None else y + bias), None)


class Decoder(nn.Module):
    """A range of layers, named by their number in the whole model, and the final norm on the last stage."""

    def __init__(
        self, layers: Mapping[int, nn.Module], final_layernorm: nn.Module | None, runs: Sequence[tuple[Stretch, Runner]]
    ) -> None:
        """`runs` says in which stretches the layers run, and how."""
        super().__init__()
        self.layers = nn.ModuleDict({str(number): layer for number, layer in layers.items()})
        self.final_layernorm = final_layernorm
        self._runs = tuple(runs)

    def numbered(self) -> Iterator[tuple[int, nn.Module]]:
        """Yield the layers with their numbers in the whole model."""
        for number, layer in self.layers.items():
            yield int(number), layer

    def forward(
        self,
        x_SBH: Tensor,
        tables: RotaryTables | None,
        mask: Mask,
        part: SequenceSlice | None = None,
        real: RealTokens | None = None,
    ) -> Tensor:
        for stretch, run in self._runs:
            x_SBH = run(partial(self._through, stretch), x_SBH, tables, mask, part, real)
        return x_SBH if self.final_layernorm is None else self.final_layernorm(x_SBH)

    def _through(
        self,
        stretch: Stretch,
        x_SBH: Tensor,
        tables: RotaryTables | None,
        mask: Mask,
        part: SequenceSlice | None,
        real: RealTokens | None,
    ) -> Tensor:
        for number in stretch.layers:
            x_SBH = self.layers[str(number)](x_SBH, tables, mask, part, real)
        return x_SBH
