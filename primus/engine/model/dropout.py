"""The end of both halves of a layer as a part: bias, dropout from the right random stream, residual addition."""

from torch import Tensor, nn
from torch.nn import functional as F

from primus.engine.kernels.dropout_add import bias_dropout_add
from primus.engine.model.parameter import Place

__all__ = ["BiasDropoutAdd", "ResidualDropout"]


class BiasDropoutAdd(nn.Module):
    """residual + dropout(y + bias)."""

    def __init__(self, place: Place, probability: float) -> None:
        super().__init__()
        self.probability, self.streams, self.stream = probability, place.streams, place.residual_stream

    def forward(self, y: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
        if not (self.training and self.probability):
            return bias_dropout_add(y, bias, residual, 0.0)
        with self.streams.fork(self.stream):
            return bias_dropout_add(y, bias, residual, self.probability)


class ResidualDropout(nn.Module):
    """Dropout on the residual stream itself, after the embedding."""

    def __init__(self, place: Place, probability: float) -> None:
        super().__init__()
        self.probability, self.streams, self.stream = probability, place.streams, place.residual_stream

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.probability):
            return x
        with self.streams.fork(self.stream):
            return F.dropout(x, self.probability)
