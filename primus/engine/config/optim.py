"""The optimizer, its schedules, and how gradients are summed over data-parallel ranks."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["DDPConfig", "OptimizerConfig", "SchedulerConfig", "ShardingStrategy"]

ShardingStrategy = Literal["no_shard", "optim", "optim_grads", "optim_grads_params"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Adam with decoupled decay, or SGD with momentum."""

    optimizer: Literal["adam", "sgd"] = "adam"
    """Update rule."""
    lr: float
    """Peak learning rate."""
    min_lr: float = 0.0
    """Floor of the schedule."""
    decoupled_lr: float | None = None
    """Peak for the embedding and the output layer; None: `lr`."""
    decoupled_min_lr: float | None = None
    """Floor for the embedding and the output layer; None: `min_lr`."""
    head_lr_mult: float = 1.0
    """Multiplier on the scheduled rate of the output layer."""
    adam_beta1: float = 0.9
    """Decay of the first moment."""
    adam_beta2: float = 0.999
    """Decay of the second moment."""
    adam_eps: float = 1e-8
    """Added outside the square root."""
    decay_qk_norms: bool = False
    """Norms of queries and keys decay, too."""
    sgd_momentum: float = 0.9
    """Momentum of SGD."""
    clip_grad: float = 1.0
    """Largest global gradient norm; 0 switches clipping off."""
    log_num_zeros_in_grad: bool = False
    """Count exact zeros in the gradient each iteration."""
    log_params_norm: bool = False
    """L2 norm of the main parameters each iteration."""
    post_validation: bool = False
    """Stages update before the norm over all of them is known, and take back what it refuses."""
    exact_rollback: bool = True
    """Take back by a copy of weights and state; False: by the inverse of the update, to rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    """Learning rate and weight decay as functions of consumed samples."""

    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = "cosine"
    """Shape after the warm-up."""
    lr_decay_steps: int
    """Samples until `min_lr` is reached, the warm-up included."""
    lr_warmup_steps: float = 0.0
    """Samples of linear warm-up."""
    lr_warmup_init: float = 0.0
    """Rate at the first sample of the warm-up."""
    wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = "exponential"
    """Shape of WSD's anneal."""
    wsd_decay_steps: int | None = None
    """Samples of WSD's anneal."""
    start_weight_decay: float = 0.0
    """Decay of matrices at the start; biases and 1-D parameters never decay."""
    end_weight_decay: float = 0.0
    """Decay at the end of the run."""
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = "constant"
    """Shape between the two."""
    weight_decay_incr_steps: int
    """Samples over which the decay grows."""
    override_opt_param_scheduler: bool = False
    """On resume the configured schedule wins over the checkpoint's."""
    use_checkpoint_opt_param_scheduler: bool = False
    """On resume the checkpoint's schedule wins; neither: they must agree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DDPConfig:
    """Reduction of gradients over data-parallel ranks."""

    use_distributed_optimizer: bool = False
    """Each rank keeps and updates its shard of the optimizer state."""
    overlap_grad_reduce: bool = False
    """Reduce each bucket as soon as its gradients are complete."""
    overlap_param_gather: bool = False
    """Gather updated parameters bucket by bucket while the next forward runs."""
    align_grad_reduce: bool = True
    """Pipelines: overlapped reductions of a chunk begin on all stages at about the same time."""
    align_param_gather: bool = True
    """Pipelines of several chunks: overlapped gathers of a chunk begin on all stages at about the same time."""
    overlap_param_gather_with_optimizer_step: bool = False
    """Pipelines of several chunks: gather the first one while the optimizer updates the others."""
    use_torch_fsdp2: bool = False
    """torch's `fully_shard` divides optimizer state, gradients and weights by units of the model."""
    use_megatron_fsdp: bool = False
    """Shard what `data_parallel_sharding_strategy` names."""
    data_parallel_sharding_strategy: ShardingStrategy = "no_shard"
    """What ranks divide: nothing, the optimizer state, the gradients too, or the weights as well (ZeRO 0 to 3)."""
    gradient_reduce_div_fusion: bool = True
    """Sharded gradients are divided where they are added up, not in a pass of their own."""
    suggested_communication_unit_size: int = 400_000_000
    """Elements of sharded weights that are gathered before their unit runs."""
    bucket_size: int | None = None
    """Elements of a bucket; None: max(40 M, 1 M x ranks)."""
    num_buckets: int | None = None
    """Number of buckets instead of their size."""
    average_in_collective: bool = False
    """Divide after the sum instead of before it."""
    check_weight_hash_interval: int | None = None
    """Iterations between comparisons of the replicas' weights; None: never."""
    pad_buckets_for_high_nccl_busbw: bool = False
    """Pad buckets to a multiple of 65536 elements."""

    @property
    def shards_gradients(self) -> bool:
        """Whether a rank keeps its shard of the reduced gradients alone."""
        strategies = ("optim_grads", "optim_grads_params")
        return self.use_torch_fsdp2 or (self.use_megatron_fsdp and self.data_parallel_sharding_strategy in strategies)

    @property
    def shards_weights(self) -> bool:
        """Whether a rank keeps its shard of the weights alone."""
        is_zero3 = self.use_megatron_fsdp and self.data_parallel_sharding_strategy == "optim_grads_params"
        return self.use_torch_fsdp2 or is_zero3
