"""How a corpus is divided into train, validation and test, and how many samples each needs. Integers only, no torch."""

from dataclasses import dataclass

from primus.engine.config import TrainConfig
from primus.engine.config.batch import BatchPlan
from primus.engine.config.split import split_shares

__all__ = ["Sizes", "split_bounds", "split_sizes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Samples wanted of each split: 0 none, None one whole epoch."""

    train: int | None
    valid: int | None
    test: int | None


def split_sizes(train: TrainConfig) -> Sizes:
    """Return the samples that a run draws: validation at every interval and once more at the end."""
    evaluation, batch = train.evaluation, train.global_batch_size
    # How many samples the iterations take, ramp included, does not depend on the number of ranks.
    trained = train.train_samples or BatchPlan.of(train, 1).samples_of(train.train_iters)
    rounds = 1 if train.skip_train or not evaluation.eval_interval else train.train_iters // evaluation.eval_interval + 1
    valid = None if evaluation.full_validation else rounds * evaluation.eval_iters * batch
    return Sizes(train=0 if train.skip_train else trained, valid=valid, test=evaluation.eval_iters * batch)


def split_bounds(split: str, num_documents: int) -> tuple[tuple[int, int] | None, ...]:
    """Return the documents [first, last) of train, validation and test; None where the share is zero.

    Shares are contiguous and rounded half to even.
    """
    bounds, edge = [], 0.0
    for share in split_shares(split):
        start, edge = edge, edge + share
        bounds.append((round(start * num_documents), round(edge * num_documents)) if share else None)
    return tuple(bounds)
