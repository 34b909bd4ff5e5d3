"""How long the run is, how the batch is cut, when to evaluate and when to stop."""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["EvaluationConfig", "TrainConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """Validation during the run, and validation and test after it."""

    eval_iters: int = 0
    """Global batches an evaluation; 0 switches validation and test off."""
    eval_interval: int | None = None
    """Iterations between evaluations; None evaluates only after the run."""
    full_validation: bool = False
    """Walk the whole validation split once instead of `eval_iters` batches."""
    multiple_validation_sets: bool = False
    """Report each validation prefix on its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """One run: batch arithmetic, length, watchdogs, reasons to stop."""

    micro_batch_size: int
    """Sequences a data-parallel rank handles in one forward and backward."""
    global_batch_size: int
    """Sequences of one optimizer step over all data-parallel ranks, at full size."""
    rampup_batch_size: tuple[int, int, int] | None = None
    """(start, increment, samples over which the batch grows); None keeps `global_batch_size` throughout."""
    decrease_batch_size_if_needed: bool = False
    """Round the batch down to a multiple of micro batch x data parallel instead of refusing it."""
    train_iters: int
    """Optimizer iterations over all runs; with `train_samples` it is the number derived from it."""
    train_samples: int | None = None
    """Samples over all runs; set when the run's clock counts samples."""
    calculate_per_token_loss: bool = False
    """True: gradient of sum(loss)/sum(tokens) over the global batch. False: mean over microbatches of token means."""
    skip_train: bool = False
    """Only evaluate."""
    iterations_to_skip: tuple[int, ...] = ()
    """0-based iterations whose data is drawn and dropped."""
    exit_interval: int | None = None
    """Save and leave with code 0 after an iteration divisible by this."""
    exit_duration_in_mins: float | None = None
    """Save and leave with code 0 after this many minutes since the process started."""
    exit_signal_handler: bool = False
    """On SIGTERM finish the iteration, save, leave with code 0."""
    check_for_nan_in_loss_and_grad: bool = True
    """Stop the run at the first NaN or infinite loss or gradient."""
    check_for_spiky_loss: bool = False
    """Warn when a microbatch's loss sum is 10x the largest of the first 100."""
    check_for_large_grads: bool = False
    """Warn when a bucket's gradient norm is 10x the largest of the first 100."""
    manual_gc: bool = False
    """Switch automatic garbage collection off; collect on schedule only."""
    manual_gc_interval: int = 1
    """Iterations between collections under `manual_gc`; 0 never."""
    manual_gc_eval: bool = False
    """Under `manual_gc` collect around evaluations."""
    empty_unused_memory_level: Literal[0, 1, 2] = 0
    """Give cached memory back before the update (1), and after it too (2)."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Validation and test."""
