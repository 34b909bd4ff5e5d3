"""Ranks: gradients between them, how they meet, what overlaps."""

from dataclasses import dataclass
from typing import Any

__all__ = ["CommOverlapConfig", "DistributedDataParallelConfig", "DistributedInitConfig"]


@dataclass(kw_only=True)
class DistributedDataParallelConfig:
    """Gradients of replicas."""

    grad_reduce_in_fp32: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    align_param_gather: bool = False
    use_distributed_optimizer: bool = False
    num_distributed_optimizer_instances: int = 1
    check_for_nan_in_grad: bool = False
    check_for_large_grads: bool = False
    bucket_size: int | None = None
    pad_buckets_for_high_nccl_busbw: bool = False
    average_in_collective: bool = False
    fp8_param_gather: bool = False
    use_megatron_fsdp: bool = False
    data_parallel_sharding_strategy: str = "no_shard"
    gradient_reduce_div_fusion: bool = True
    suggested_communication_unit_size: int | None = None
    preserve_fp32_weights: bool = True
    nccl_ub: bool = False
    fsdp_double_buffer: bool = False


@dataclass(kw_only=True)
class DistributedInitConfig:
    """How ranks meet; `distributed_backend` None: NCCL with accelerators, gloo without."""

    distributed_backend: str | None = None
    distributed_timeout_minutes: float = 10
    align_grad_reduce: bool = True
    lazy_init: bool = False
    use_megatron_fsdp: bool = False
    use_torch_fsdp2: bool = False
    nccl_communicator_config_path: str | None = None
    use_tp_pp_dp_mapping: bool = False
    use_gloo_process_groups: bool = True
    use_sharp: bool = False
    sharp_enabled_group: str | None = None
    high_priority_stream_groups: list[str] | None = None
    external_gpu_device_mapping: bool = False
    enable_megatron_core_experimental: bool = False
    distributed_timeout_seconds_after_init: int | None = None
    disable_jit_fuser: bool = False


@dataclass(kw_only=True)
class CommOverlapConfig:
    """What goes on while ranks exchange; None: chosen from the layout."""

    tp_comm_overlap: bool = False
    tp_comm_overlap_cfg: Any = None
    tp_comm_bootstrap_backend: str | None = "nccl"
    overlap_p2p_comm: bool | None = None
    batch_p2p_comm: bool | None = None
    overlap_grad_reduce: bool | None = None
    overlap_param_gather: bool | None = None
    overlap_param_gather_with_optimizer_step: bool | None = None
    align_param_gather: bool | None = None
    bucket_size: int | None = None
    defer_embedding_wgrad_compute: bool | None = None
    wgrad_deferral_limit: int | None = None
    overlap_moe_expert_parallel_comm: bool | None = None
    delay_wgrad_compute: bool | None = None
