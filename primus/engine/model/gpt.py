"""`GPTModel`: embedding, decoder, output. One instance is one pipeline chunk; the usual one has all three parts.

Shape legend of the package: S sequence, B batch, H hidden, N query heads, G key/value groups, D head channels, F feed-forward,
T tokens (S x B flat), V vocabulary. Activations are [S, B, H]; under sequence parallelism S is this rank's slice between the
linears. Parameters carry Megatron-Core's names and layouts, with layers numbered over the whole model.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from primus.engine.kernels.segments import Mask, Segments
from primus.engine.model.embedding import Embedding
from primus.engine.model.layer import Decoder
from primus.engine.model.moe.real import RealTokens
from primus.engine.model.mtp import Ahead, MultiTokenPrediction
from primus.engine.model.output import OutputLayer
from primus.engine.model.rotary import RotaryEmbedding
from primus.engine.model.slices import SequenceSlice
from primus.engine.parallel.buckets import Unit
from primus.engine.parallel.lanes import Lanes

__all__ = ["GPTModel"]


class GPTModel(nn.Module):
    """A decoder-only transformer, or the part of it that lies on one pipeline stage."""

    def __init__(
        self,
        *,
        embedding: Embedding | None,
        rotary: RotaryEmbedding | None,
        decoder: Decoder,
        output_layer: OutputLayer | None,
        mtp: MultiTokenPrediction | None = None,
        lanes: Lanes | None = None,
    ) -> None:
        """Without `embedding`, forward takes hidden states; without `output_layer`, it returns them.

        `lanes` are what its layers let pass while tokens travel.
        """
        super().__init__()
        self.lanes = lanes
        self.embedding, self.rotary = embedding, rotary
        self.decoder, self.output_layer, self.mtp = decoder, output_layer, mtp

    def units(self) -> list[Unit]:
        """Return the parts whose weights are needed together, in the order in which they run."""
        units = [] if self.embedding is None else [Unit(modules=(self.embedding,), backward_reads_weights=False)]
        units += [Unit(modules=(layer,)) for layer in self.decoder.layers.values()]
        # The output layer runs once more for each depth of the prediction layers.
        parts = (self.decoder.final_layernorm, self.output_layer, self.mtp)
        ends = tuple(part for part in parts if part is not None)
        return [*units, Unit(modules=ends)] if ends else units

    def forward(
        self,
        tokens_BS: Tensor,
        position_ids_BS: Tensor,
        attention_mask: Mask = None,
        labels_BS: Tensor | None = None,
        loss_mask_BS: Tensor | None = None,
        *,
        hidden_SBH: Tensor | None = None,
        part: SequenceSlice | None = None,
        real: RealTokens | None = None,
        ahead: Sequence[Ahead] = (),
    ) -> Tensor:
        """Return logits [B, S, V]; with labels the loss of each token [B, S]; with a loss mask besides, the sum of loss x mask.

        Losses are in at least fp32. The sum is the cheap one: it can be had without holding the logits. `attention_mask` is
        bool [B or 1, 1, S, S], True where attention is blocked, and replaces the causal rule; or it says which samples the
        sequence has. `hidden_SBH` comes from the previous pipeline stage. `part`: the tokens are a slice of their sequence;
        the mask has their rows, and columns up to their end, samples are those of the whole. `real`: None if all tokens are,
        and rows are not packed. With `ahead` for each depth of the prediction layers, the sums of their losses come behind,
        [1 + depths].
        """
        x_SBH = hidden_SBH if self.embedding is None else self.embedding(tokens_BS, position_ids_BS)
        assert x_SBH is not None, "a stage without embedding needs the hidden states of the stage before it"
        packed = attention_mask if isinstance(attention_mask, Segments) else None
        first = 0 if part is None else part.first
        tables = None if self.rotary is None else self.rotary(tokens_BS.shape[1], first, packed)
        x_SBH = self.decoder(x_SBH, tables, attention_mask, part, real)
        if self.output_layer is None:
            hidden: Tensor = x_SBH
            return hidden
        result: Tensor = self.output_layer(x_SBH, labels_BS, loss_mask_BS)
        if self.mtp is None:
            assert not ahead, "there are no layers that look further ahead"
            return result
        # Also where they rest, as in an evaluation: who gathers weights unit by unit waits for the last module of a unit.
        further: Tensor = self.mtp(x_SBH, ahead, self.output_layer, tables, attention_mask)
        return torch.cat((result.unsqueeze(0), further)) if ahead else result
