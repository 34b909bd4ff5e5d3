"""`load_checkpoint` restores what a `Start` asks for and reports, line by line, what was restored and what was not.

Before a weight is touched the files' sizes are checked, and names, shapes and architecture are held against the run's; each
tensor's checksum is checked as it is read. What is wrong on one rank is raised on all.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from primus.engine.checkpoint import dist_format
from primus.engine.checkpoint.adapters import adapter_problems
from primus.engine.checkpoint.agree import everywhere, on_first
from primus.engine.checkpoint.compare import Difference, architecture_problems, changes, difference, refusal, remarks
from primus.engine.checkpoint.files import Checksums, unpack
from primus.engine.checkpoint.folder import format_of
from primus.engine.checkpoint.hf.names import listed
from primus.engine.checkpoint.hf.weights import HFSource
from primus.engine.checkpoint.local_source import LocalSource
from primus.engine.checkpoint.save import COMMON, rng_name, saved_layout
from primus.engine.checkpoint.start import Start
from primus.engine.checkpoint.state import TrainState
from primus.engine.checkpoint.torch_format import RankFiles
from primus.engine.config import CheckpointConfig
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import Shards
from primus.errors import InputError

__all__ = ["Loaded", "Source", "load_checkpoint", "load_weights", "open_checkpoint"]

log = logging.getLogger(__name__)


class Source(Protocol):
    """A checkpoint on disk, opened by this rank."""

    common: Mapping[str, Any]
    is_shared: bool
    """Every rank sees the same tensors in it."""

    def shapes(self) -> dict[str, tuple[int, ...]]: ...
    def dtypes(self) -> dict[str, torch.dtype]: ...
    def load(self, tensors: Mapping[str, Shards]) -> None: ...
    def rng(self, mesh: Mesh, data_rank: int) -> dict[str, Any] | None: ...


@dataclass(slots=True)
class Loaded:
    """What came out of a checkpoint."""

    state: TrainState
    optimizer_common: Mapping[str, Any] | None = None
    """None: the optimizer is fresh."""
    rng: Mapping[str, Any] | None = None
    """This rank's random states; None: they are fresh."""
    main_params: bool = False
    """Main parameters were restored without the rest of the optimizer."""
    report: list[str] = field(default_factory=list)
    """Lines for the log; those that begin with NOT are warnings."""


def load_checkpoint(
    start: Start,
    config: CheckpointConfig,
    *,
    model: Mapping[str, Shards],
    optimizer: Mapping[str, Shards],
    container: Mapping[str, Any],
    mesh: Mesh,
    on_weights: Callable[[], None],
    adapt: Callable[[Source], Source] = lambda source: source,
    base: Mapping[str, Any] | None = None,
) -> Loaded:
    """Fill `model` and, if it is wanted and there, `optimizer` in place. InputError lists everything that does not fit.

    `on_weights` is called between the two: main weights that the checkpoint lacks can then follow the model's. `adapt` may
    give a checkpoint of another model the shapes of this one. With a `base`, `model` are adapters: the checkpoint must hold
    theirs, all of them, and on the same base.
    """
    source = adapt(_open(start, config, mesh))
    common = source.common
    loaded = Loaded(TrainState() if start.weights_only else TrainState.from_dict(common["state"]))
    # A total of work done, not a position: it goes on counting through a fresh start from these weights.
    loaded.state.num_floating_point_operations_so_far = common["state"]["num_floating_point_operations_so_far"]
    has_optimizer = start.load_optim and common["optimizer_common"] is not None
    wanted = dict(model)
    if has_optimizer:
        wanted |= optimizer
        loaded.optimizer_common = common["optimizer_common"]
    elif config.load_main_params_from_ckpt and common["optimizer_common"] is not None:
        main = {name: shards for name, shards in optimizer.items() if name.startswith("optimizer.state.main_param.")}
        wanted |= main
    architecture = [] if start.weights_only else architecture_problems(common["container"]["model"], container["model"])
    found = _compare(source, wanted, mesh, with_optimizer=has_optimizer)
    misfits = adapter_problems(start.folder, common, container, base)
    if misfits:
        raise InputError(misfits)
    _refuse(start.folder, config.strictness if base is None else None, architecture, found)
    present = {name: shards for name, shards in wanted.items() if name not in found.not_stored}
    everywhere(mesh.world, lambda: source.load({name: s for name, s in present.items() if name in model}))
    on_weights()
    states = {name: shards for name, shards in present.items() if name not in model}
    everywhere(mesh.world, lambda: source.load(states))
    loaded.main_params = bool(states) and loaded.optimizer_common is None
    _take_rng(start, source, mesh, loaded)
    _report(start, config, source, model, loaded)
    loaded.report += remarks(found, config.strictness)
    changed = [] if start.weights_only else changes(common["container"], container)
    if changed:
        loaded.report.append(f"changed since iteration {common['iteration']} was saved: {'; '.join(changed)}")
    return loaded


def load_weights(
    folder: Path, model: Mapping[str, Shards], *, mesh: Mesh, adapt: Callable[[Source], Source] = lambda source: source
) -> None:
    """Fill the weights in place, whatever the format; every one must be there. `adapt` as above."""
    source = adapt(open_checkpoint(folder, mesh, None))
    found = _compare(source, model, mesh, with_optimizer=False)
    _refuse(folder, CheckpointConfig().strictness, [], found)
    everywhere(mesh.world, lambda: source.load(model))


class _DistSource:
    """A `torch_dist` checkpoint: all ranks share its index."""

    is_shared = True

    def __init__(self, folder: Path, checksums: Checksums) -> None:
        self._folder, self._checksums = folder, checksums
        self._metadata = dist_format.read_metadata(folder, checksums)
        self._stored = dist_format.stored_tensors(self._metadata)
        self.common: Mapping[str, Any] = unpack(checksums.read_file(COMMON), folder / COMMON, "its content")
        if "state" not in self.common:
            raise InputError(f"{folder / COMMON} was not written by Primus: it holds no counters; convert the checkpoint first")
        checksums.require()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: stored.global_shape for name, stored in self._stored.items()}

    def dtypes(self) -> dict[str, torch.dtype]:
        return {name: stored.dtype for name, stored in self._stored.items()}

    def load(self, tensors: Mapping[str, Shards]) -> None:
        dist_format.load_tensors(self._folder, tensors, self._metadata, self._checksums)

    def rng(self, mesh: Mesh, data_rank: int) -> dict[str, Any] | None:
        name = rng_name(mesh, data_rank=data_rank)
        state: dict[str, Any] | None = dist_format.load_packed(self._folder, name, self._metadata, self._checksums)
        return state


class _TorchSource:
    """A `torch` checkpoint: each model-parallel rank has its own files."""

    is_shared = False

    def __init__(self, folder: Path, checksums: Checksums, mesh: Mesh) -> None:
        self._folder, self._files = folder, RankFiles(folder, mesh, checksums)
        checksums.require()
        self.common: Mapping[str, Any] = self._files.main
        self.shapes, self.dtypes, self.load = self._files.shapes, self._files.dtypes, self._files.load

    def rng(self, mesh: Mesh, data_rank: int) -> dict[str, Any] | None:
        states: list[bytes | None] = self._files.main["rng_state"]
        packed = states[mesh.dp_cp.index if data_rank == mesh.coordinates.dp else 0]
        return None if packed is None else unpack(memoryview(packed), self._folder, "rng_state")


def _open(start: Start, config: CheckpointConfig, mesh: Mesh) -> Source:
    if start.is_local:
        return LocalSource(start, mesh)
    if start.is_hugging_face:
        opened: list[Source] = []
        everywhere(mesh.world, lambda: opened.append(HFSource(start.folder)))
        return opened[0]
    return open_checkpoint(start.folder, mesh, config)


def open_checkpoint(folder: Path, mesh: Mesh, config: CheckpointConfig | None) -> Source:
    """Open a checkpoint on all ranks; `config` None accepts either format."""

    def look() -> tuple[str, Checksums]:
        found = format_of(folder)
        if found is None:
            raise InputError(f"{folder} is not a complete checkpoint")
        if config is not None and found != config.ckpt_format and not config.auto_detect_ckpt_format:
            raise InputError(
                f"{folder} is of ckpt_format {found}, the run says ckpt_format {config.ckpt_format}; "
                f"set ckpt_format: {found}, or auto_detect_ckpt_format: true to read either"
            )
        checksums = Checksums.read(folder)
        checksums.check_sizes()
        return found, checksums

    kind, checksums = on_first(mesh.world, look)
    opened: list[Source] = []
    make = (lambda: _DistSource(folder, checksums)) if kind == "torch_dist" else lambda: _TorchSource(folder, checksums, mesh)
    everywhere(mesh.world, lambda: opened.append(make()))
    return opened[0]


def _compare(source: Source, wanted: Mapping[str, Shards], mesh: Mesh, *, with_optimizer: bool) -> Difference:
    """Compare over all ranks: a pipeline stage asks for its part only, and a rank's file holds its part only."""
    ours = {name: tuple(shards.global_shape) for name, shards in wanted.items()}
    theirs = source.shapes() if mesh.rank == 0 or not source.is_shared else {}
    ranks = everywhere(mesh.world, lambda: (ours, theirs))

    def compare() -> Difference:
        asked = {name: shape for wants, _ in ranks for name, shape in wants.items()}
        stored = {name: shape for _, holds in ranks for name, shape in holds.items()}
        return difference(asked, stored, with_optimizer=with_optimizer)

    return on_first(mesh.world, compare)


def _refuse(folder: Path, strictness: str | None, architecture: list[str], found: Difference) -> None:
    problems = [*architecture, *refusal(folder, found, strictness)]
    if architecture:
        problems.append(f"{folder} was saved by another model; finetune: true takes its weights alone, if they fit")
    if problems:
        raise InputError(problems)


def _take_rng(start: Start, source: Source, mesh: Mesh, loaded: Loaded) -> None:
    """Data-parallel ranks draw alike, so a run with more or fewer of them goes on from the first one's states."""
    if not start.load_rng or not source.common["has_rng"]:
        return
    saved, ours = source.common["saved_layout"], saved_layout(mesh)
    if {**saved, "data": None} != {**ours, "data": None}:
        return
    data_rank = mesh.coordinates.dp if saved["data"] == ours["data"] else 0
    states: list[dict[str, Any] | None] = []
    everywhere(mesh.world, lambda: states.append(source.rng(mesh, data_rank)))
    loaded.rng = states[0]


def _report(start: Start, config: CheckpointConfig, source: Source, model: Mapping[str, Shards], loaded: Loaded) -> None:
    """Say what came back and why the rest did not."""
    if isinstance(source, HFSource):
        loaded.report.append(f"loaded the weights of {start.folder} ({source.family})")
        if source.not_used:
            loaded.report.append(f"NOT loaded, the model has no part for them: {listed(source.not_used)}")
        _report_dtypes(source, model, loaded)
        return
    common, why = source.common, "finetune" if config.finetune else "weights only"
    done, left = ["weights"], []
    if start.weights_only:
        left.append(f"iteration and sample counters ({why})")
    else:
        done.insert(0, f"iteration {loaded.state.iteration} and sample counters")
    if loaded.optimizer_common is not None:
        done.append("optimizer and learning-rate schedule")
    else:
        asked = start.load_optim and "it was saved with no_save_optim"
        unasked = "no_load_optim" if config.no_load_optim else "nothing is trained"
        left.append(f"optimizer and learning-rate schedule ({asked or _unasked(start, why, unasked)})")
    if loaded.main_params:
        done.append("main parameters")
    if loaded.rng is not None:
        done.append("random states")
    elif start.load_rng:
        other = f"RNG state will be ignored: it was saved by {common['saved_layout']}"
        left.append(f"random states ({other if common['has_rng'] else 'it was saved with no_save_rng'})")
    else:
        left.append(f"random states ({_unasked(start, why, 'no_load_rng')})")
    loaded.report.append(f"loaded checkpoint {start.folder} of iteration {common['iteration']}: {', '.join(done)}")
    if left:
        loaded.report.append(f"NOT restored from {start.folder}: {', '.join(left)}")
    _report_dtypes(source, model, loaded)


def _report_dtypes(source: Source, model: Mapping[str, Shards], loaded: Loaded) -> None:
    stored = source.dtypes()
    changed = sorted({f"{stored[n]} -> {s.dtype}" for n, s in model.items() if n in stored and stored[n] != s.dtype})
    if changed:
        loaded.report.append(f"weights were converted: {', '.join(changed)}")


def _unasked(start: Start, why: str, key: str) -> str:
    return why if start.weights_only else key
