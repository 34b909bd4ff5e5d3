"""From the last hidden states to logits or losses: the output matrix, its rows divided over the vocabulary."""

from collections.abc import Callable

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
        skips_masked: bool,
        cross_entropy_in_fp16: bool = False,
        soft_cap: float | None = None,
    ) -> None:
        """`weight` is its own or the embedding's; `sum_of_losses` None takes the sum from the whole logits.

        `skips_masked`: tokens without loss have no logits. On an accelerator the host waits for the mask then.
        """
        super().__init__()
        self.tp, self.sequence_parallel = place.tp, place.sequence_parallel
        self.weight, self.vocab_size, self.in_fp16 = weight, vocab_size, cross_entropy_in_fp16
        self.soft_cap, self.skips_masked = soft_cap, skips_masked
        rows = weight.shape[0]
        first = place.tp.index * rows
        self.columns = Columns(first, max(0, min(rows, vocab_size - first)), place.tp)
        self._sum = self._sum_of_whole if sum_of_losses is None else sum_of_losses

    def forward(self, x_SBH: Tensor, labels_BS: Tensor | None = None, loss_mask_BS: Tensor | None = None) -> Tensor:
        """Return logits of the real vocabulary on every rank [B, S, V]; with labels losses [B, S]; with a mask their sum.

        All three come through here, so that a hook before this forward sees every use of the weight.
        """
        x_SBH = enter_tensor_parallel(x_SBH, self.tp, self.sequence_parallel)
        if labels_BS is None:
            logits = collectives.gather_last_dim(self._own_logits(x_SBH), self.tp)
            return logits[..., : self.vocab_size].transpose(0, 1)
        x_TH, labels_T = x_SBH.flatten(0, 1), labels_BS.t().flatten()
        if loss_mask_BS is None:
            return self._losses(x_TH, labels_T).view(labels_BS.t().shape).t()
        mask_T = loss_mask_BS.t().flatten()
        # Where nothing has values, as in a rehearsal, every token may count.
        if self.skips_masked and not mask_T.is_meta:
            x_TH, labels_T, mask_T = _of_counted(x_TH, labels_T, mask_T)
        return self._sum(x_TH, self.weight, labels_T, mask_T, self.columns, self.soft_cap)

    def _losses(self, x_TH: Tensor, labels_T: Tensor) -> Tensor:
        return vocab_parallel_cross_entropy(self._own_logits(x_TH), labels_T, self.columns, in_fp16=self.in_fp16)

    def _own_logits(self, x_: Tensor) -> Tensor:
        return soft_cap(linear(x_, self.weight), self.soft_cap)

    def _sum_of_whole(self, x_TH: Tensor, _: Tensor, labels_T: Tensor, mask_T: Tensor, *__: object) -> Tensor:
        return (self._losses(x_TH, labels_T) * mask_T).sum()


def _of_counted(x_TH: Tensor, labels_T: Tensor, mask_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens whose loss counts; where none does, one that does not, so that gradients still flow."""
    counted = mask_T.nonzero()[:, 0]
    if len(counted) == len(mask_T):
        return x_TH, labels_T, mask_T
    if not len(counted):
        counted = counted.new_zeros(1)
    return x_TH.index_select(0, counted), labels_T[counted], mask_T[counted]
