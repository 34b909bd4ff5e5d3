"""What is saved, what a run starts from, and which of these choices need one another."""

import os
from collections.abc import Iterator

from primus.backends.megatron.params import Derivation, Params, Problems, Rewrite, Rule

__all__ = ["DERIVATIONS", "RULES"]


def evaluation_only_needs_no_optimizer(p: Params) -> Iterator[Rewrite]:
    """A run that never steps restores no optimizer."""
    if p["skip_train"] and not p["no_load_optim"]:
        yield Rewrite(key="no_load_optim", value=True, reason="skip_train is true")


def saving_has_an_interval(p: Params) -> Problems:
    """Saves come at an interval, and what is kept is a multiple of it."""
    every, keep = p["save_interval"], p["save_retain_interval"]
    if p["save"] is None:
        return
    if every is None or every < 1:
        yield f"{p.where('save')} needs a save_interval of at least 1 (it is {p.where('save_interval')})."
    elif keep is not None and keep % every:
        nearest = max(1, round(keep / every)) * every
        yield f"{p.where('save_retain_interval')} is not a multiple of {p.where('save_interval')}: use {nearest}, or null."


def saved_things_have_a_place(p: Params) -> Problems:
    """Continuing and progress notes live in the checkpoint folder."""
    for key in ("auto_continue_train", "log_progress"):
        if p[key] and p["save"] is None:
            yield f"{p.where(key)} works in the checkpoint folder, but {p.where('save')}: set save, such as save: checkpoints."


def main_params_come_without_optimizer(p: Params) -> Problems:
    """fp32 main parameters are read instead of the optimizer, not beside it."""
    if p["load_main_params_from_ckpt"] and not p["no_load_optim"]:
        yield f"{p.where('load_main_params_from_ckpt')} needs no_load_optim: true (it is {p.where('no_load_optim')})."


def step_has_a_folder(p: Params) -> Problems:
    """`ckpt_step` picks one checkpoint of the folder that is loaded."""
    if p["ckpt_step"] and p["load"] is None and p["pretrained_checkpoint"] is None:
        yield f"{p.where('ckpt_step')} picks a checkpoint, but neither load nor pretrained_checkpoint is set: set one of them."


def non_persistent_saving_is_complete(p: Params) -> Problems:
    """Checkpoints in between have a kind, a place, and a run that saves."""
    kind, interval = p["non_persistent_ckpt_type"], p["non_persistent_save_interval"]
    if kind == "in_memory":
        yield (
            f"{p.where('non_persistent_ckpt_type')}: memory ends with the process; use local with a folder in memory, such as "
            "non_persistent_local_ckpt_dir: /dev/shm/checkpoints, and replication for the loss of a node."
        )
    if kind == "local" and p["non_persistent_local_ckpt_dir"] is None:
        yield f"{p.where('non_persistent_ckpt_type')} needs non_persistent_local_ckpt_dir, a folder on each node's disk."
    if interval is None:
        return
    if kind is None:
        yield f"{p.where('non_persistent_save_interval')} needs non_persistent_ckpt_type: global or local."
    if p["save"] is None:
        yield f"{p.where('non_persistent_save_interval')} works beside save, but {p.where('save')}: set save and save_interval."


def non_persistent_ones_lie_apart(p: Params) -> Problems:
    """The newest alone is kept, and would take the others along."""
    key = "non_persistent_global_ckpt_dir"
    if p["non_persistent_ckpt_type"] != "global" or p[key] is None or p["save"] is None:
        return
    if os.path.realpath(p.output_path(p[key])) == os.path.realpath(p.output_path(p["save"])):
        yield f"{p.where(key)} is the folder of {p.where('save')}, whose checkpoints would be deleted: choose another one."


def replicas_have_their_ranks(p: Params) -> Problems:
    """Copies are made of local parts, by groups of ranks that cover the run."""
    if not p["replication"]:
        return
    if p["non_persistent_ckpt_type"] != "local":
        yield (
            f"{p.where('replication')} copies local checkpoints: set non_persistent_ckpt_type: local "
            f"(it is {p.where('non_persistent_ckpt_type')})."
        )
    if p["replication_jump"] is None:
        yield f"{p.where('replication')} needs replication_jump, such as the number of ranks on a node."
        return
    jump, factor = p["replication_jump"], p["replication_factor"] or 2
    if p.world_size % (jump * factor):
        yield (
            f"{p.where('replication_jump')} times replication_factor {factor} must divide the {p.world_size} processes of the "
            f"run: groups of {factor} ranks that lie {jump} apart keep one another's parts."
        )


DERIVATIONS: tuple[Derivation, ...] = (evaluation_only_needs_no_optimizer,)
RULES: tuple[Rule, ...] = (
    saving_has_an_interval,
    saved_things_have_a_place,
    main_params_come_without_optimizer,
    step_has_a_folder,
    non_persistent_saving_is_complete,
    non_persistent_ones_lie_apart,
    replicas_have_their_ranks,
)
