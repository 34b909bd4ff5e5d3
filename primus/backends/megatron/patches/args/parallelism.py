"""What tensor and data parallelism ask of the model's sizes, and which overlaps need one another."""

from collections.abc import Iterator

from primus.backends.megatron.params import Derivation, Params, Problems, Rewrite, Rule, or_list
from primus.backends.megatron.patches.args.architecture import ffn_hidden_size, nearest_divisors, num_query_groups
from primus.backends.megatron.patches.args.batch import data_parallel_size
from primus.backends.megatron.patches.args.pipeline import num_chunks
from primus.backends.megatron.patches.args.positions import length_key, seq_length

__all__ = ["DERIVATIONS", "RULES"]


def sequence_parallelism_needs_tensor_parallelism(p: Params) -> Iterator[Rewrite]:
    """One tensor-parallel rank has nothing to share a sequence with; the preset's default then says nothing."""
    if p["sequence_parallel"] and p["tensor_model_parallel_size"] == 1:
        notice = f"{p.where('sequence_parallel')} has no effect: {p.where('tensor_model_parallel_size')}."
        yield Rewrite(
            key="sequence_parallel",
            value=False,
            reason="tensor_model_parallel_size is 1",
            notice=notice if p.is_chosen("sequence_parallel") else None,
        )


def heads_divide_over_ranks(p: Params) -> Problems:
    """Each tensor-parallel rank owns whole heads, and whole key/value heads or a share in one."""
    ranks, heads = p["tensor_model_parallel_size"], p.required("num_attention_heads")
    if heads % ranks:
        yield f"{_indivisible(p, 'num_attention_heads')}: use {or_list(nearest_divisors(heads, ranks))} ranks."
    groups = num_query_groups(p)
    if groups > 0 and groups % ranks and ranks % groups:
        yield (
            f"{p.where('num_query_groups')} is neither a multiple nor a divisor of {p.where('tensor_model_parallel_size')}: "
            "choose one that is."
        )


def width_divides_over_ranks(p: Params) -> Problems:
    """Each tensor-parallel rank owns an equal slice of the feed-forward layer."""
    ranks = p["tensor_model_parallel_size"]
    if ranks > 1 and ffn_hidden_size(p) % ranks:
        given = p["ffn_hidden_size"] is not None
        width = p.where("ffn_hidden_size") if given else f"ffn_hidden_size {ffn_hidden_size(p)} (derived)"
        yield f"{width} is not divisible by {p.where('tensor_model_parallel_size')}: use multiples of {ranks}."


def sequence_divides_over_ranks(p: Params) -> Problems:
    """With sequence parallelism each tensor-parallel rank owns an equal slice of the sequence."""
    ranks = p["tensor_model_parallel_size"]
    if p["sequence_parallel"] and ranks > 1 and seq_length(p) % ranks:
        key, length = length_key(p), seq_length(p)
        below = length // ranks * ranks
        yield (
            f"{_indivisible(p, key)}: set {key} to {or_list(n for n in (below, below + ranks) if n)}, "
            "or choose a size that divides it, or set sequence_parallel: false."
        )


def param_gather_overlap_has_its_base(p: Params) -> Problems:
    """Parameters are gathered bucket by bucket only where they are sharded and gradients are reduced that way."""
    if not p["overlap_param_gather"] or p["use_torch_fsdp2"]:
        return
    for key in ("use_distributed_optimizer", "overlap_grad_reduce"):
        if not p[key]:
            yield f"{p.where('overlap_param_gather')} needs {key}: true (it is {p.where(key)})."


def gathers_beside_the_update_have_their_base(p: Params) -> Problems:
    """There is a first chunk to gather only where there are others, and somebody who gathers in parts."""
    key = "overlap_param_gather_with_optimizer_step"
    if not p[key]:
        return
    if not p["overlap_param_gather"]:
        yield f"{p.where(key)} needs overlap_param_gather: true (it is {p.where('overlap_param_gather')})."
    if num_chunks(p) < 2:
        yield (
            f"{p.where(key)} needs several model chunks a rank, of which the first is gathered early: set "
            "num_virtual_stages_per_pipeline_rank: 2 or more, or drop the key."
        )


def instances_divide_the_replicas(p: Params) -> Problems:
    """Each instance of the sharded optimizer has equally many data-parallel ranks."""
    count = p["num_distributed_optimizer_instances"]
    if count == 1:
        return
    replicas = data_parallel_size(p) * p["context_parallel_size"]
    if not (p["use_distributed_optimizer"] or p["use_torch_fsdp2"]):
        yield (
            f"{p.where('num_distributed_optimizer_instances')} needs use_distributed_optimizer: true "
            f"(it is {p.where('use_distributed_optimizer')})."
        )
    if replicas % count:
        yield (
            f"{p.where('num_distributed_optimizer_instances')} does not divide the {replicas} ranks that hold the same "
            "parameters (data x context parallel): use a divisor."
        )


def buckets_are_sized_once(p: Params) -> Problems:
    """Number and size of buckets exclude each other."""
    if p["ddp_num_buckets"] is not None and p["ddp_bucket_size"] is not None:
        yield f"{p.where('ddp_num_buckets')} and {p.where('ddp_bucket_size')} exclude each other: set one to null."


def averaging_fits_the_loss(p: Params) -> Problems:
    """A per-token loss sums gradients, so the collective must not average them."""
    if p["ddp_average_in_collective"] and p["calculate_per_token_loss"]:
        yield (
            f"{p.where('ddp_average_in_collective')} excludes {p.where('calculate_per_token_loss')}: "
            "per-token gradients are summed and divided once; set ddp_average_in_collective: false."
        )


DERIVATIONS: tuple[Derivation, ...] = (sequence_parallelism_needs_tensor_parallelism,)
RULES: tuple[Rule, ...] = (
    heads_divide_over_ranks,
    width_divides_over_ranks,
    sequence_divides_over_ranks,
    param_gather_overlap_has_its_base,
    gathers_beside_the_update_have_their_base,
    instances_divide_the_replicas,
    buckets_are_sized_once,
    averaging_fits_the_loss,
)


def _indivisible(p: Params, key: str) -> str:
    return f"{p.where(key)} is not divisible by {p.where('tensor_model_parallel_size')}"
