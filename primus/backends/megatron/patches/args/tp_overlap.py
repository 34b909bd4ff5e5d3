"""Tensor-parallel communication beside products: which form each product gets, and what the overlap asks for.

Switches choose what overlaps at all; the map of `tp_comm_overlap_cfg` chooses how, for the products that it names.
"""

from collections.abc import Callable
from functools import partial

import yaml

from primus.backends.megatron.overlap_cfg import METHODS, Asked, OverlapError, parse_overlaps, read_overlaps
from primus.backends.megatron.params import Notices, Params, Problems, Rule, Unreadable
from primus.backends.megatron.patches.args.positions import length_key, seq_length
from primus.engine.config.tp_overlap import BULK, ProductOverlap

__all__ = ["PRODUCTS", "RULES", "map_has_idle_parts", "path_of_map"]

_ON, _MAP, _RS_DGRAD = "tp_comm_overlap", "tp_comm_overlap_cfg", "tp_comm_overlap_rs_dgrad"
_NUM_SPLITS = 4
"""Pieces of `pipeline` where nothing is said, as in Transformer Engine."""
_GATHERED = ("qkv_fprop", "fc1_fprop", "proj_dgrad", "fc2_dgrad")
_SCATTERED = ("proj_fprop", "fc2_fprop")
_COLUMN_DGRAD, _COLUMN_WGRAD = ("qkv_dgrad", "fc1_dgrad"), ("qkv_wgrad", "fc1_wgrad")
_SWITCHES: dict[tuple[str, ...], tuple[str, ...]] = {
    _GATHERED: ("tp_comm_overlap_ag", "tp_comm_split_ag"),
    _SCATTERED: ("tp_comm_overlap_rs", "tp_comm_split_rs"),
}


def path_of_map(p: Params) -> str | None:
    """Return the file that is named; None if the map is written in its place, or there is none."""
    given = p[_MAP]
    return p.input_path(given) if isinstance(given, str) and not given.lstrip().startswith("{") else None


def needs_sequence_parallelism(p: Params) -> Problems:
    """Without it nothing is gathered or scattered that could go in pieces."""
    if p[_ON] and not p["sequence_parallel"]:
        yield (
            f"{p.where(_ON)} needs sequence_parallel: true and tensor_model_parallel_size of 2 or more "
            f"(they are {p.where('sequence_parallel')} and {p.where('tensor_model_parallel_size')})."
        )


def determinism_excludes_overlap(p: Params) -> Problems:
    """Pieces are summed in another order than the whole."""
    if p[_ON] and p["deterministic_mode"]:
        yield f"{p.where(_ON)} and {p.where('deterministic_mode')} exclude each other: set one of them to false."


def map_is_readable(p: Params) -> Problems:
    """Products, methods and fields are those that exist."""
    try:
        _given(p)
    except OverlapError as error:
        for fault in error.faults:
            yield f"{p.where(_MAP)}: {fault}"


def map_agrees_with_the_switches(p: Params) -> Problems:
    """The gradient of a gathered input is scattered beside one product: that which makes it, or that of the weight."""
    for name, asked in _asked(p).items() if p[_ON] else ():
        if name in _COLUMN_DGRAD and asked.method is not None and (asked.method == "bulk") == p[_RS_DGRAD]:
            meant = "beside the product itself" if asked.method != "bulk" else "again beside the product of the weight gradient"
            yield (
                f"{p.where(_MAP)}: {name} with method {asked.method} scatters the input gradient {meant}, but "
                f"{p.where(_RS_DGRAD)}: set it to {str(not p[_RS_DGRAD]).lower()}, or leave {name} out."
            )
        elif name in _COLUMN_WGRAD and p[_RS_DGRAD]:
            yield f"{p.where(_MAP)}: {name} has nothing beside it under {p.where(_RS_DGRAD)}: leave {name} out."


def pieces_have_rows(p: Params) -> Problems:
    """Each piece takes positions from every rank."""
    for name, asked in _asked(p).items() if p[_ON] else ():
        if asked.num_splits is not None and asked.num_splits > _rows(p):
            yield (
                f"{p.where(_MAP)}: {name} has {asked.num_splits} num_splits, but {p.where(length_key(p))} leaves "
                f"{_rows(p)} positions to each rank: use that many at most."
            )


def map_has_idle_parts(p: Params) -> Notices:
    """Entries whose switch is off, and fields for kernels that are not there."""
    if not p[_ON]:
        return
    asked = _asked(p)
    for name in asked:
        off = next((key for names, keys in _SWITCHES.items() if name in names for key in keys if not p[key]), None)
        if off or PRODUCTS[name](p) is None:
            key = off or ("tp_comm_bulk_dgrad" if name in _COLUMN_DGRAD else "tp_comm_bulk_wgrad")
            yield f"{p.where(_MAP)}: {name} has no effect: {p.where(key)}."
    fields = sorted({field for each in asked.values() for field in each.of_kernels})
    if fields:
        yield (
            f"{p.where(_MAP)}: {', '.join(fields)} {'has' if len(fields) == 1 else 'have'} no effect: pieces travel through "
            "the run's own process groups, whose library sizes its kernels itself."
        )


RULES: tuple[Rule, ...] = (
    needs_sequence_parallelism,
    determinism_excludes_overlap,
    map_is_readable,
    map_agrees_with_the_switches,
    pieces_have_rows,
)


def _given(p: Params) -> dict[str, Asked]:
    """Return what the map says; OverlapError if it cannot be used."""
    given, path = p[_MAP], path_of_map(p)
    if given is None:
        return {}
    if path is not None:
        return read_overlaps(path)
    try:
        return parse_overlaps(yaml.safe_load(given) if isinstance(given, str) else given)
    except yaml.YAMLError as error:
        raise OverlapError([f"it is not YAML: {' '.join(str(error).split())}."]) from error


def _asked(p: Params) -> dict[str, Asked]:
    try:
        return _given(p)
    except OverlapError as error:
        raise Unreadable(_MAP) from error


def _rows(p: Params) -> int:
    """Return the positions that a rank keeps between linears."""
    return int(seq_length(p) // p["context_parallel_size"] // p["tensor_model_parallel_size"])


def _product(p: Params, name: str) -> ProductOverlap | None:
    """Return how communication runs beside a product."""
    if not p[_ON]:
        return BULK if name in (*_COLUMN_DGRAD, *_COLUMN_WGRAD) else None
    if name in _COLUMN_DGRAD and not p[_RS_DGRAD]:
        return BULK if p["tp_comm_bulk_dgrad"] else None
    if name in _COLUMN_WGRAD:
        return BULK if p["tp_comm_bulk_wgrad"] and not p[_RS_DGRAD] else None
    if not all(p[key] for names, keys in _SWITCHES.items() if name in names for key in keys):
        return None
    asked = _asked(p).get(name, Asked())
    usual = next(method for method in METHODS[name] if method != "bulk")
    method = usual if asked.method is None else asked.method
    splits = min(asked.num_splits or _NUM_SPLITS, _rows(p)) if method == "pipeline" else 1
    return ProductOverlap(method=method, num_splits=splits)


PRODUCTS: dict[str, Callable[[Params], ProductOverlap | None]] = {name: partial(_product, name=name) for name in METHODS}
"""By name, what gives the form of a product."""
