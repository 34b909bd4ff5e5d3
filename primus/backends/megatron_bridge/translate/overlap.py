"""`comm_overlap_config`: what goes on while ranks exchange; what it leaves open follows from the layout (Megatron-Bridge)."""

from primus.backends.megatron_bridge.translate.raw import Raw
from primus.core.experiment import Value

__all__ = ["overlap_values"]

_PART = "comm_overlap"
_BUCKET = 128 * 2**20


def overlap_values(raw: Raw, *, data_ranks: int) -> dict[str, Value]:
    """Return the flat values of a policy; none without one."""
    policy = raw.config.comm_overlap
    if policy is None:
        return {}
    model = raw.config.model
    chunks = model.virtual_pipeline_model_parallel_size or 1
    staged, interleaved = model.pipeline_model_parallel_size > 1, chunks > 1
    divided = data_ranks > 1 and (raw.config.ddp.use_distributed_optimizer or raw.config.optimizer.use_distributed_optimizer)
    automatic = {
        "overlap_p2p_comm": staged and interleaved,
        "overlap_grad_reduce": divided,
        "overlap_param_gather": divided,
        "align_param_gather": divided and staged and interleaved,
    }
    values = {
        "tp_comm_overlap": _value(raw, "tp_comm_overlap", policy.tp_comm_overlap and _can_overlap_tp(raw)),
        "ddp_bucket_size": _value(
            raw, "bucket_size", _BUCKET if policy.bucket_size is None and divided else policy.bucket_size
        ),
    }
    for name, choice in automatic.items():
        given = getattr(policy, name)
        values[name] = _value(raw, name, choice if given is None else given)
    for name in (
        "tp_comm_overlap_cfg",
        "overlap_param_gather_with_optimizer_step",
        "defer_embedding_wgrad_compute",
        "wgrad_deferral_limit",
        "overlap_moe_expert_parallel_comm",
        "delay_wgrad_compute",
    ):
        if (given := getattr(policy, name)) is not None:
            values[name] = _value(raw, name, given)
    return values


def _can_overlap_tp(raw: Raw) -> bool:
    model = raw.config.model
    return model.tensor_model_parallel_size > 1 and model.sequence_parallel


def _value(raw: Raw, name: str, value: object) -> Value:
    return raw.value(value, f"{_PART}.{name}", _PART)
