"""How the depth of the model is divided over pipeline ranks, and in which order they work.

A model of p*v stages lies on p ranks with v chunks each; stages are numbered in the order of the model. `Placement` says which
chunk is which stage:

    linear       v = 1, stage r on rank r
    interleaved  stage c*p + r is chunk c of rank r
    fold         v = 2, a V: stage r is chunk 0 of rank r, stage 2p-1-r its chunk 1
"""

from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Literal, get_args

from primus.engine.config.offload import OffloadConfig, estimated_copy_time
from primus.errors import ConfigError

__all__ = [
    "ALGORITHMS",
    "OFFLOADING_V",
    "V_SHAPED",
    "WHOLE_BACKWARDS",
    "Algorithm",
    "PipelineConfig",
    "Placement",
    "even_split",
    "rank_of_stage",
    "stage_of",
]

Algorithm = Literal[
    "1f1b",
    "1f1b-interleaved",
    "group-interleaved",
    "zero-bubble",
    "zero-bubble-heuristic",
    "zbv-formatted",
    "v-half",
    "v-min",
    "1f1b-v",
]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
V_SHAPED: tuple[Algorithm, ...] = ("zbv-formatted", "v-half", "v-min", "1f1b-v")
"""They fold the model, so that its first and last layers share a rank."""
WHOLE_BACKWARDS: tuple[Algorithm, ...] = ("1f1b", "1f1b-interleaved", "1f1b-v")
"""Their backwards are not split."""
OFFLOADING_V: tuple[Algorithm, ...] = ("zbv-formatted", "v-half", "v-min")
"""Of those, the ones that can keep the first chunk's activations on the host."""
Placement = Literal["linear", "interleaved", "fold"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineConfig:
    """Stages and schedule; `parallel.pipeline_model_parallel_size` is the number of ranks."""

    algorithm: Algorithm = "1f1b"
    """Order of forwards and backwards (`pp_algorithm`)."""
    num_chunks: int = 1
    """Stages of each rank (`num_virtual_stages_per_pipeline_rank`)."""
    layers_per_stage: tuple[int, ...] | None = None
    """Decoder layers of each stage; None divides them evenly. Embedding and loss are on the first and the last one."""
    num_slices: int = 1
    """1F1B: equal parts of each sequence that pass the stages one after another (`num_seq_splits`)."""
    microbatch_group_size: int | None = None
    """Interleaved: microbatches that pass a chunk before the next one's turn (`microbatch_group_size_per_vp_stage`)."""
    interleave_group_size: int | None = None
    """Group-interleaved: microbatches that walk through the chunks together; None: one a rank."""
    communication_method: Literal["async_p2p", "batch_p2p"] = "async_p2p"
    """Wait for a transfer where it is needed, with the next ones under way, or for each one as it is asked for."""
    max_memory: tuple[float, ...] | None = None
    """Heuristic: activations each rank may hold, in microbatches (`pp_max_mem`)."""
    cost_forward: tuple[float, ...] | None = None
    """Heuristic: time of a forward on each rank (`pp_cost_f`)."""
    cost_input_grad: tuple[float, ...] | None = None
    """Heuristic: time of an input gradient on each rank (`pp_cost_b`)."""
    cost_weight_grad: tuple[float, ...] | None = None
    """Heuristic: time of a weight gradient on each rank (`pp_cost_w`)."""

    timed_steps: tuple[int, int] | None = None
    """Heuristic: first and last step that is timed; the schedule is then made anew from the times. None: it stays."""
    max_pending_backward: int | None = None
    """After timing: microbatches of the heavier of the first two stages that each rank may hold; None: what memory allows."""
    memory_percentile: int = 85
    """Of the device's memory, for what memory allows."""
    delay_weight_gradients: bool = False
    """Whole backwards are split: a rank passes the input gradient on before it computes weight gradients."""
    postpone_output_gradient: bool = False
    """Weight gradients of the output layer wait until the rank's backwards are through (`defer_embedding_wgrad_compute`)."""
    output_gradient_limit: int = 0
    """Microbatches that do so, from the first one; 0: all (`wgrad_deferral_limit`)."""
    offload: OffloadConfig = field(default_factory=OffloadConfig)
    """What lies in host memory between forward and backward."""
    pre_communication: bool = False
    """One element travels ahead of each message (`pre_communication_optimization`)."""
    scatter_gather: bool = True
    """Tensor-parallel ranks send a share of a message each, and gather it (`scatter_gather_tensors_in_pipeline`)."""
    debug_scheduler_table: bool = False
    """Print the schedule once."""
    warmup: bool = False
    """Run every chunk once before the first step, on made-up input (`pp_warmup`)."""
    dump_times: bool = False
    """Keep start and end of every operation and write them at the end (`dump_pp_data`)."""

    @property
    def placement(self) -> Placement:
        """Which chunk is which stage."""
        if self.algorithm in V_SHAPED:
            return "fold"
        return "interleaved" if self.num_chunks > 1 else "linear"

    @property
    def splits_backward(self) -> bool:
        """Whether weight gradients are operations of their own."""
        return self.delay_weight_gradients or self.algorithm not in WHOLE_BACKWARDS

    @property
    def defers_output_gradient(self) -> bool:
        """Whether the output layer's weight gradient is computed later than its backward."""
        return self.splits_backward or self.postpone_output_gradient

    def with_copy_time(self, hidden_size: int, seq_length: int, device: str = "") -> "PipelineConfig":
        """Return the same with an estimate where the time of copies to the host is open; `device` is the accelerator's name."""
        if not self.offload.is_on or self.offload.time is not None:
            return self
        return replace(self, offload=replace(self.offload, time=estimated_copy_time(hidden_size, seq_length, device)))

    def stage_layers(self, num_layers: int, num_ranks: int) -> tuple[range, ...]:
        """Return the layers of each stage; ConfigError if the stages named are not these ranks' or miss the depth."""
        count = num_ranks * self.num_chunks
        sizes = even_split(num_layers, count) if self.layers_per_stage is None else self.layers_per_stage
        if len(sizes) != count or sum(sizes) != num_layers:
            raise ConfigError(
                f"layers_per_stage {list(sizes)}: {count} stages of together {num_layers} layers are needed, "
                f"these are {len(sizes)} of together {sum(sizes)}"
            )
        return tuple(range(first, stop) for first, stop in pairwise(accumulate(sizes, initial=0)))


def even_split(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return equal shares; what is missing for them is missing on the last stages (`allow_padding_num_layers`)."""
    share, left, sizes = -(-num_layers // num_stages), num_layers, list[int]()
    for _ in range(num_stages):
        sizes.append(min(share, left))
        left -= sizes[-1]
    return tuple(sizes)


def stage_of(placement: Placement, num_ranks: int, rank: int, chunk: int) -> int:
    """Return which stage a chunk is."""
    return 2 * num_ranks - 1 - rank if placement == "fold" and chunk else chunk * num_ranks + rank


def rank_of_stage(placement: Placement, num_ranks: int, stage: int) -> int:
    """Return the pipeline rank that a stage lies on."""
    return min(stage, 2 * num_ranks - 1 - stage) if placement == "fold" else stage % num_ranks
