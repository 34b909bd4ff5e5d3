"""Pipeline keys: layers on stages, model chunks, schedules, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from primus.engine.config.pipeline import Algorithm
from primus.engine.pipeline.schedules import Costs, build_schedule, schedule_of

PLACED: list[tuple[str, int, dict[str, Any], tuple[int, ...]]] = [
    ("even", 4, {"num_layers": 8}, (2, 2, 2, 2)),
    ("padded", 4, {"num_layers": 9}, (3, 3, 3, 0)),
    ("padded-chunks", 2, {"num_layers": 7, "num_virtual_stages_per_pipeline_rank": 2}, (2, 2, 2, 1)),
    (
        "accounted",
        4,
        {
            "num_layers": 14,
            "account_for_embedding_in_pipeline_split": True,
            "account_for_loss_in_pipeline_split": True,
        },
        (3, 4, 4, 3),
    ),
    (
        "accounted-chunks",
        4,
        {
            "num_layers": 14,
            "account_for_embedding_in_pipeline_split": True,
            "account_for_loss_in_pipeline_split": True,
            "num_virtual_stages_per_pipeline_rank": 2,
        },
        (1, 2, 2, 2, 2, 2, 2, 1),
    ),
    (
        "ends",
        4,
        {"num_layers": 10, "decoder_first_pipeline_num_layers": 1, "decoder_last_pipeline_num_layers": 3},
        (1, 3, 3, 3),
    ),
    (
        "ends-chunks",
        2,
        {"num_layers": 6, "decoder_first_pipeline_num_layers": 2, "virtual_pipeline_model_parallel_size": 2},
        (1, 2, 1, 2),
    ),
    ("layout", 4, {"num_layers": 11, "pipeline_model_parallel_layout": "Et|tt|t*8|L"}, (1, 2, 8, 0)),
    ("layout-chunks", 2, {"num_layers": 8, "pipeline_model_parallel_layout": "Ettt|(tt|)*2,tL"}, (3, 2, 2, 1)),
    (
        "layout-list",
        2,
        {"num_layers": 3, "pipeline_model_parallel_layout": [["embedding", "decoder"], ["decoder", "decoder", "loss"]]},
        (1, 2),
    ),
    ("manual", 2, {"num_layers": 5, "decoder_pipeline_manual_split_list": [1, 4]}, (1, 4)),
    ("standalone", 4, {"num_layers": 6, "standalone_embedding_stage": True}, (0, 2, 2, 2)),
]


@pytest.mark.parametrize(("ranks", "keys", "expected"), [row[1:] for row in PLACED], ids=[row[0] for row in PLACED])
def test_layers_of_each_stage(build: Any, ranks: int, keys: dict[str, Any], expected: tuple[int, ...]) -> None:
    pipeline = build({"pipeline_model_parallel_size": ranks, **keys}, world_size=ranks).config.model.pipeline
    assert pipeline.layers_per_stage == expected
    assert pipeline.num_chunks == len(expected) // ranks
    assert pipeline.algorithm == ("1f1b-interleaved" if pipeline.num_chunks > 1 else "1f1b")


@pytest.mark.parametrize("name", ["zbv-formatted", "v-half", "v-min"])
def test_a_folded_schedule_brings_its_two_chunks(build: Any, name: str) -> None:
    keys = {"pipeline_model_parallel_size": 2, "patch_primus_pipeline": True, "pp_algorithm": name}
    pipeline = build(keys, world_size=2).config.model.pipeline
    assert (pipeline.algorithm, pipeline.num_chunks, pipeline.placement) == (name, 2, "fold")


def test_without_the_patch_the_named_schedule_does_not_count(build: Any) -> None:
    keys = {"pipeline_model_parallel_size": 2, "pp_algorithm": "v-half", "communication_method": "batch_p2p"}
    pipeline = build(keys, world_size=2).config.model.pipeline
    assert (pipeline.algorithm, pipeline.num_chunks, pipeline.communication_method) == ("1f1b", 1, "async_p2p")
    patched = build({**keys, "patch_primus_pipeline": True, "overlap_p2p_comm": True}, world_size=2).config.model.pipeline
    assert patched.communication_method == "batch_p2p"
    assert build({**keys, "overlap_p2p_comm": False}, world_size=2).config.model.pipeline.communication_method == "batch_p2p"


def test_costs_and_memory_are_spread_over_the_ranks(build: Any) -> None:
    keys = {
        "pipeline_model_parallel_size": 2,
        "patch_primus_pipeline": True,
        "pp_algorithm": "zero-bubble-heuristic",
        "pp_max_mem": 3,
        "pp_cost_f": [1, 2],
        "pp_cost_b": 2.5,
        "pp_cost_w": 1,
    }
    pipeline = build(keys, world_size=2).config.model.pipeline
    assert pipeline.max_memory == (3, 3)
    assert (pipeline.cost_forward, pipeline.cost_input_grad, pipeline.cost_weight_grad) == ((1, 2), (2.5, 2.5), (1, 1))


CHUNKS = {"num_virtual_stages_per_pipeline_rank": 2}
HEURISTIC = {"patch_primus_pipeline": True, "pp_algorithm": "zero-bubble-heuristic"}
GROUPED = {"patch_zero_bubble": True, "enable_zero_bubble": False, **CHUNKS}
PLAIN = Costs(forward=1000.0, input_grad=1000.0, weight_grad=1000.0, transfer=1.0)


@pytest.mark.parametrize(
    ("base", "key", "value", "algorithm", "more"),
    [
        (HEURISTIC, "pp_max_mem", 2, "zero-bubble-heuristic", {"max_memory": 2}),
        (HEURISTIC, "pp_max_mem", [4, 3, 2, 2], "zero-bubble-heuristic", {"max_memory": (4, 3, 2, 2)}),
        (HEURISTIC, "pp_cost_f", 500, "zero-bubble-heuristic", {"costs": replace(PLAIN, forward=500.0)}),
        (HEURISTIC, "pp_cost_b", 2500, "zero-bubble-heuristic", {"costs": replace(PLAIN, input_grad=2500.0)}),
        (
            HEURISTIC,
            "pp_cost_b",
            [1000, 1000, 3000, 1000],
            "zero-bubble-heuristic",
            {"costs": replace(PLAIN, input_grad=(1000.0, 1000.0, 3000.0, 1000.0))},
        ),
        (HEURISTIC, "pp_cost_w", 100, "zero-bubble-heuristic", {"costs": replace(PLAIN, weight_grad=100.0)}),
        (GROUPED, "interleave_group_size", 2, "group-interleaved", {"group_size": 2}),
        (CHUNKS, "microbatch_group_size_per_vp_stage", 8, "1f1b-interleaved", {"group_size": 8}),
    ],
    ids=lambda part: part if isinstance(part, str) else None,
)
def test_the_schedule_is_made_with_what_the_key_says(
    build: Any, base: dict[str, Any], key: str, value: object, algorithm: Algorithm, more: dict[str, Any]
) -> None:
    keys = {"pipeline_model_parallel_size": 4, "num_layers": 8, **base}
    plain, changed = (
        schedule_of(build({**keys, **given}, world_size=4).config.model.pipeline, 4, 8).rows for given in ({}, {key: value})
    )
    assert changed == build_schedule(algorithm, 4, 8, **{"costs": PLAIN} | more).rows
    assert changed != plain


ZERO = {"patch_zero_bubble": True, "pipeline_model_parallel_size": 2}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ("zero-bubble-heuristic", 1, (2.0, 2.0), (100, 110), None)),
        ({"zero_bubble_max_pending_backward": 4}, ("zero-bubble-heuristic", 1, (2.0, 2.0), (100, 110), 4)),
        ({"enable_zero_bubble": False}, ("1f1b", 1, None, None, None)),
        ({"enable_zero_bubble": False, "enable_1f1b_v": True}, ("1f1b-v", 2, None, None, None)),
        ({"enable_zero_bubble": False, **CHUNKS}, ("group-interleaved", 2, None, None, None)),
        ({"zero_bubble_v_schedule": True}, ("v-half", 2, None, None, None)),
        ({"zero_bubble_v_schedule": True, "zero_bubble_v_schedule_mem_setup": "min"}, ("v-min", 2, None, None, None)),
        ({"zero_bubble_v_schedule": True, "zero_bubble_v_schedule_mem_setup": "zb"}, ("zbv-formatted", 2, None, None, None)),
    ],
)
def test_the_zero_bubble_section_chooses(build: Any, keys: dict[str, Any], expected: tuple[Any, ...]) -> None:
    p = build({**ZERO, **keys}, world_size=2).config.model.pipeline
    assert (p.algorithm, p.num_chunks, p.max_memory, p.timed_steps, p.max_pending_backward) == expected


def test_a_whole_v_folds_the_model(build: Any) -> None:
    keys = {**ZERO, "enable_zero_bubble": False, "enable_1f1b_v": True, "num_layers": 8}
    pipeline = build(keys, world_size=2).config.model.pipeline
    assert (pipeline.placement, pipeline.layers_per_stage) == ("fold", (2, 2, 2, 2))


@pytest.mark.parametrize(("given", "expected"), [({}, 2), ({"interleave_group_size": 1}, 1), ({"interleave_group_size": 5}, 2)])
def test_groups_are_one_a_rank_at_most(build: Any, given: dict[str, Any], expected: int) -> None:
    keys = {**ZERO, "enable_zero_bubble": False, **CHUNKS, **given}
    assert build(keys, world_size=2).config.model.pipeline.interleave_group_size == expected
    assert build({**keys, "enable_1f1b_v": True}, world_size=2).config.model.pipeline.interleave_group_size is None


def test_without_its_patch_the_zero_bubble_section_does_not_count(build: Any) -> None:
    keys = {"pipeline_model_parallel_size": 2, "zero_bubble_v_schedule": True, "zero_bubble_max_pending_backward": 3}
    pipeline = build({**keys, "enable_1f1b_v": True}, world_size=2).config.model.pipeline
    assert (pipeline.algorithm, pipeline.timed_steps, pipeline.max_pending_backward) == ("1f1b", None, None)


PRIMUS = {"patch_primus_pipeline": True}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("two-ways", {"standalone_embedding_stage": True, "decoder_first_pipeline_num_layers": 1}, "exclude each other"),
    (
        "ends-and-accounts",
        {"decoder_first_pipeline_num_layers": 1, "account_for_loss_in_pipeline_split": True},
        "exclude each other",
    ),
    ("layout-letter", {"pipeline_model_parallel_layout": "Ett|txL"}, "cannot be read"),
    ("layout-name", {"pipeline_model_parallel_layout": [["embedding"], ["dcoder"]]}, "cannot be read"),
    ("layout-order", {"pipeline_model_parallel_layout": "ttE|ttL"}, "must start with one E"),
    ("layout-depth", {"pipeline_model_parallel_layout": "Et|tL"}, "has 2 layers (t), but num_layers is 4"),
    ("layout-stages", {"pipeline_model_parallel_layout": "Et|t|ttL"}, "has 3 stages, no multiple of"),
    ("layout-mtp", {"pipeline_model_parallel_layout": "Ett|ttmL"}, "has 1 prediction layers (m), but mtp_num_layers null"),
    ("manual-sum", {"decoder_pipeline_manual_split_list": [1, 2]}, "add up to num_layers 4"),
    ("manual-negative", {"decoder_pipeline_manual_split_list": [5, -1]}, "numbers from 0"),
    ("manual-length", {"decoder_pipeline_manual_split_list": [1, 1, 1, 1]}, "num_virtual_stages_per_pipeline_rank: 2"),
    (
        "ends-uneven",
        {"decoder_first_pipeline_num_layers": 1, "decoder_last_pipeline_num_layers": 1},
        "leave 2 of 4 layers for 0 other",
    ),
    ("no-padding", {"num_layers": 3, "allow_padding_num_layers": False}, "allow_padding_num_layers: true"),
    (
        "no-padding-chunks",
        {"num_layers": 6, "allow_padding_num_layers": False, "num_virtual_stages_per_pipeline_rank": 2},
        "2 pipeline ranks x 2 model chunks",
    ),
    (
        "chunks-twice",
        {"num_virtual_stages_per_pipeline_rank": 2, "num_layers_per_virtual_pipeline_stage": 1},
        "each gives the number of model chunks",
    ),
    ("chunk-size", {"num_layers_per_virtual_pipeline_stage": 3}, "no whole number of chunks of 3"),
    (
        "chunk-size-ends",
        {"num_layers_per_virtual_pipeline_stage": 1, "decoder_first_pipeline_num_layers": 2},
        "use num_virtual_stages_per_pipeline_rank",
    ),
    (
        "chunks-of-ends",
        {"num_virtual_stages_per_pipeline_rank": 2, "decoder_first_pipeline_num_layers": 1},
        "must be divisible by its 2 model chunks",
    ),
    ("standalone-chunks", {"standalone_embedding_stage": True, "num_virtual_stages_per_pipeline_rank": 2}, "one model chunk"),
    ("layout-huge", {"pipeline_model_parallel_layout": "Et*99999999999|t*4L"}, "cannot be read: stages are separated by |"),
    ("interleaved-alone", {**PRIMUS}, "needs several model chunks"),
    (
        "zb-chunks",
        {**PRIMUS, "pp_algorithm": "zero-bubble", "num_virtual_stages_per_pipeline_rank": 2},
        "needs one model chunk",
    ),
    ("fold-chunks", {**PRIMUS, "pp_algorithm": "v-min", "num_virtual_stages_per_pipeline_rank": 4}, "needs two model chunks"),
    (
        "group-large",
        {"num_virtual_stages_per_pipeline_rank": 2, "microbatch_group_size_per_vp_stage": 9},
        "must be between the 2 pipeline ranks and the 8 microbatches",
    ),
    ("group-rest", {"num_virtual_stages_per_pipeline_rank": 2, "global_batch_size": 5}, "leave 1 for the last group"),
    ("group-without", {"microbatch_group_size_per_vp_stage": 2}, "needs the interleaved schedule"),
    ("costs-elsewhere", {"pp_cost_f": 2}, "zero-bubble-heuristic only"),
    (
        "costs-length",
        {**PRIMUS, "pp_algorithm": "zero-bubble-heuristic", "pp_cost_w": [1, 2, 3]},
        "must be one number or 2",
    ),
    ("costs-zero", {**PRIMUS, "pp_algorithm": "zero-bubble-heuristic", "pp_cost_w": 0}, "must be above 0"),
    ("both-patches", {**PRIMUS, **ZERO}, "exclude each other: keep one"),
    ("pending-word", {**ZERO, "zero_bubble_max_pending_backward": "many"}, "must be auto, or a number of microbatches"),
    ("pending-none", {**ZERO, "zero_bubble_max_pending_backward": 0}, "must be auto, or a number of microbatches"),
    ("timers", {**ZERO, "zero_bubble_pipeline_timers_end_iter": 5}, "lies before zero_bubble_pipeline_timers_start_iter 100"),
    ("knock", {"pre_communication_optimization": True, "overlap_p2p_comm": False}, "needs overlap_p2p_comm: true"),
    (
        "knock-by-name",
        {**PRIMUS, "pre_communication_optimization": True, "communication_method": "batch_p2p"},
        "needs communication_method: async_p2p",
    ),
    ("whole-v-split", {**ZERO, "enable_1f1b_v": True}, "keeps backwards whole, but enable_zero_bubble true"),
    (
        "whole-v-zero-v",
        {**ZERO, "enable_1f1b_v": True, "enable_zero_bubble": False, "zero_bubble_v_schedule": True},
        "set zero_bubble_v_schedule: false",
    ),
    (
        "whole-v-chunks",
        {**ZERO, "enable_1f1b_v": True, "enable_zero_bubble": False, "num_virtual_stages_per_pipeline_rank": 4},
        "the schedule 1f1b-v needs two model chunks",
    ),
    ("group-negative", {**ZERO, **CHUNKS, "enable_zero_bubble": False, "interleave_group_size": -1}, "interleave_group_size"),
    (
        "group-of-other",
        {**ZERO, **CHUNKS, "enable_zero_bubble": False, "microbatch_group_size_per_vp_stage": 2},
        "but the schedule is group-interleaved",
    ),
    ("zero-chunks", {**ZERO, "num_virtual_stages_per_pipeline_rank": 2}, "needs one model chunk"),
    ("zero-v-chunks", {**ZERO, "zero_bubble_v_schedule": True, "num_virtual_stages_per_pipeline_rank": 4}, "needs two model"),
    ("memory-small", {**PRIMUS, "pp_algorithm": "zero-bubble-heuristic", "pp_max_mem": 0.5}, "must be at least 1"),
]

SLICED = {"patch_zero_bubble": True, "num_seq_splits": 2}
REFUSED += [
    (
        "output-gradients-of-split-backwards",
        {**PRIMUS, "pp_algorithm": "zero-bubble", "defer_embedding_wgrad_compute": True},
        "the schedule zero-bubble puts off all weight gradients already; set it to false.",
    ),
    (
        "output-gradients-in-two-steps",
        {"defer_embedding_wgrad_compute": True, "gradient_accumulation_fusion": False},
        "needs gradient_accumulation_fusion: true (it is gradient_accumulation_fusion false (exp.yaml:",
    ),
    ("negative-limit", {"wgrad_deferral_limit": -1}, "wgrad_deferral_limit -1 (exp.yaml:"),
    ("slices-alone", {"num_seq_splits": 2}, "needs patch_zero_bubble: true"),
    ("slices-uneven", {**SLICED, "num_seq_splits": 3}, "into unequal slices: choose a number that divides it"),
    ("slices-folded", {**SLICED, "zero_bubble_v_schedule": True}, "but zero_bubble_v_schedule true (exp.yaml:"),
    ("slices-v", {**SLICED, "enable_zero_bubble": False, "enable_1f1b_v": True}, "folds the model: keep one"),
    ("slices-chunks", {**SLICED, "num_virtual_stages_per_pipeline_rank": 2}, "the schedule 1f1b needs one model chunk a rank"),
]

VALIDATED = {"patch_zero_bubble": True, "enable_optimizer_post_validation": True}
REFUSED += [
    ("validation-alone", {"enable_optimizer_post_validation": True}, "needs a pipeline and patch_zero_bubble: true"),
    ("validation-1f1b", {**VALIDATED, "enable_zero_bubble": False}, "needs enable_zero_bubble: true"),
    ("validation-1f1b-v", {**VALIDATED, "enable_zero_bubble": False, "enable_1f1b_v": True}, "needs enable_zero_bubble: true"),
    ("validation-slices", {**VALIDATED, "num_seq_splits": 2}, "runs 1F1B: keep one"),
    ("validation-tokens", {**VALIDATED, "calculate_per_token_loss": True}, "is known on the last stage alone; keep one"),
    ("validation-zeros", {**VALIDATED, "log_num_zeros_in_grad": True}, "zeros are counted over all stages"),
    ("validation-norm", {**VALIDATED, "log_params_norm": True}, "the norm is summed over all stages"),
    ("validation-fsdp", {**VALIDATED, "use_megatron_fsdp": True}, "sharded gradients are gone"),
]


@pytest.mark.parametrize(("keys", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused(problems_of: Any, keys: dict[str, Any], message: str) -> None:
    problems = problems_of({"pipeline_model_parallel_size": 2, **keys}, world_size=2)
    assert any(message in problem for problem in problems), problems
    assert len(problems) <= 2


def test_slices_divide_over_what_divides_a_sequence(problems_of: Any) -> None:
    keys = {**SLICED, "pipeline_model_parallel_size": 2}
    shared = {"tensor_model_parallel_size": 4, "sequence_parallel": True, "num_seq_splits": 16}
    (problem,) = problems_of({**keys, **shared, "seq_length": 32}, world_size=8)
    assert "leaves slices of 2 tokens, which sequence_parallel cannot divide over tensor_model_parallel_size 4" in problem
    (problem,) = problems_of({**keys, "context_parallel_size": 2}, world_size=4)
    assert "num_seq_splits 2 (exp.yaml:" in problem
    assert "both divide the sequence: keep one" in problem


def test_an_accounted_loss_needs_a_layer_to_give(problems_of: Any) -> None:
    keys = {"num_layers": 1, "account_for_loss_in_pipeline_split": True, "pipeline_model_parallel_size": 4}
    (problem,) = problems_of(keys, world_size=4)
    assert problem.startswith("2 layers (with loss) leave the last of 4 stages without a layer to give")


@pytest.mark.parametrize(
    "keys",
    [
        {"pipeline_model_parallel_layout": "E|ttttL"},
        {"decoder_pipeline_manual_split_list": [4]},
        {"decoder_last_pipeline_num_layers": 4},
        {"standalone_embedding_stage": True},
        {"num_virtual_stages_per_pipeline_rank": 2},
        {"num_layers_per_virtual_pipeline_stage": 2},
        {"patch_primus_pipeline": True},
        {"microbatch_group_size_per_vp_stage": 2},
        {"patch_zero_bubble": True},
        {"defer_embedding_wgrad_compute": True},
    ],
    ids=lambda keys: next(iter(keys)),
)
def test_pipeline_keys_need_a_pipeline(problems_of: Any, keys: dict[str, Any]) -> None:
    (problem,) = problems_of(keys)
    (name,) = keys
    assert problem.startswith(name)
    assert "needs a pipeline, but pipeline_model_parallel_size 1 (" in problem


@pytest.mark.parametrize(
    ("keys", "delays"),
    [
        ({}, True),
        (CHUNKS, True),
        ({**ZERO, "enable_zero_bubble": False}, True),
        (ZERO, False),
        ({**PRIMUS, "pp_algorithm": "v-min"}, False),
    ],
)
def test_whole_backwards_are_taken_apart(build: Any, keys: dict[str, Any], delays: bool) -> None:
    pipeline = build(
        {"pipeline_model_parallel_size": 2, "delay_wgrad_compute": True, **keys}, world_size=2
    ).config.model.pipeline
    assert pipeline.delay_weight_gradients == delays
    assert pipeline.splits_backward


def test_one_stage_keeps_its_backwards_whole(build: Any) -> None:
    assert not build({"delay_wgrad_compute": True}).config.model.pipeline.splits_backward
