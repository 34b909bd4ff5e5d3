"""From the last hidden states to logits or losses: the output matrix, its rows divided over the vocabulary."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from primus.engine.kernels.cross_entropy import Columns, vocab_parallel_cross_entropy
from primus.engine.kernels.linear import linear
from primus.engine.kernels.soft_cap import soft_cap
from primus.engine.model.linears import enter_tensor_parallel
from primus.engine.model.parameter import Place
from primus.engine.parallel import collectives

__all__ = ["OutputLayer", "SumOfLosses"]

SumOfLosses = Callable[[Tensor, Tensor, Tensor, Tensor, Columns, float | None], Tensor]
"""From hidden states, matrix, labels, loss weights, own columns and soft cap to the weighted sum of the tokens' losses."""


class OutputLayer(nn.Module):
    """Logits or losses from hidden states [S, B, H]; padding of the vocabulary takes no part in either."""

    def __init__(
        self,
        place: Place,
        weight: nn.Parameter,
        *,
        vocab_size: int,
        sum_of_losses: SumOfLosses | None,
        cross_entropy_in_fp16: bool = False,
        soft_cap: float | None = None,
    ) -> None:
        """`weight` is its own or the embedding's; `sum_of_losses` None takes the sum from the whole logits."""
        super().__init__()
        self.tp, self.sequence_parallel = place.tp, place.sequence_parallel
        self.weight, self.vocab_size, self.in_fp16 = weight, vocab_size, cross_entropy_in_fp16
        self.soft_cap = soft_cap
        rows = weight.shape[0]
        first = place.tp.index * rows
        self.columns = Columns(first, max(0, min(rows, vocab_size - first)), place.tp)
        self._loss_sum: Callable[[Tensor, Tensor, Tensor], Tensor] = (
            self._whole_sum if sum_of_losses is None else partial(self._fused_sum, sum_of_losses)
        )

    def forward(self, x_SBH: Tensor, labels_BS: Tensor | None = None, loss_mask_BS: Tensor | None = None) -> Tensor:
        """Return logits of the real vocabulary on every rank [B, S, V]; with labels losses [B, S]; with a mask their sum.

        All three come through here, so that a hook before this forward sees every use of the weight.
        """
        if labels_BS is None:
            logits = collectives.gather_last_dim(self._own_logits(x_SBH), self.tp)
            return logits[..., : self.vocab_size].transpose(0, 1)
        return self._losses(x_SBH, labels_BS) if loss_mask_BS is None else self._loss_sum(x_SBH, labels_BS, loss_mask_BS)

    def _losses(self, x_SBH: Tensor, labels_BS: Tensor) -> Tensor:
        """Return the loss of each token, [B, S]."""
        B, S = labels_BS.shape
        logits_TV = self._own_logits(x_SBH).flatten(0, 1)
        losses_T = vocab_parallel_cross_entropy(logits_TV, labels_BS.t().flatten(), self.columns, in_fp16=self.in_fp16)
        return losses_T.view(S, B).t()

    def _own_logits(self, x_SBH: Tensor) -> Tensor:
        return soft_cap(linear(enter_tensor_parallel(x_SBH, self.tp, self.sequence_parallel), self.weight), self.soft_cap)

    def _whole_sum(self, x_SBH: Tensor, labels_BS: Tensor, loss_mask_BS: Tensor) -> Tensor:
        losses_BS = self._losses(x_SBH, labels_BS)
        return (losses_BS * loss_mask_BS).sum()

    def _fused_sum(self, form: SumOfLosses, x_SBH: Tensor, labels_BS: Tensor, loss_mask_BS: Tensor) -> Tensor:
        x_TH = enter_tensor_parallel(x_SBH, self.tp, self.sequence_parallel).flatten(0, 1)
        labels_T, mask_T = labels_BS.t().flatten(), loss_mask_BS.t().flatten()
        return form(x_TH, self.weight, labels_T, mask_T, self.columns, self.soft_cap)
