"""Which layers stand on which pipeline stage: seven keys that exclude one another, and an even division without them.

Stages are numbered in the order of the model; a rank with several model chunks holds as many of them.
"""

import re

from primus.backends.megatron.params import Params, Problems, Rule, Unreadable
from primus.backends.megatron.patches.args.architecture import num_layers
from primus.engine.config.pipeline import even_split

__all__ = [
    "ENDS",
    "LAYOUT",
    "MANUAL",
    "RULES",
    "STANDALONE",
    "chosen_ways",
    "layers_per_stage",
    "layout_stages",
    "num_slots",
    "slots_text",
]

ENDS = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
_ACCOUNTS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
LAYOUT, MANUAL = "pipeline_model_parallel_layout", "decoder_pipeline_manual_split_list"
STANDALONE = "standalone_embedding_stage"
_NAMES = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def layers_per_stage(p: Params, num_chunks: int) -> tuple[int, ...]:
    """Return the decoder layers of each stage; Unreadable where a rule has something to say."""
    ranks, depth = p["pipeline_model_parallel_size"], num_layers(p)
    if p[LAYOUT] is not None:
        sizes = tuple(stage.count("t") for stage in layout_stages(p))
    elif p[MANUAL] is not None:
        sizes = tuple(p[MANUAL])
    elif any(p[key] is not None for key in ENDS):
        sizes = _with_ends(p, num_chunks)
    elif p[STANDALONE]:
        sizes = (0, *even_split(depth, ranks - 1)) if ranks > 1 else (depth,)
    else:
        sizes = _even(p, num_chunks)
    if len(sizes) != ranks * num_chunks or sum(sizes) != depth or min(sizes) < 0:
        raise Unreadable(LAYOUT)
    return sizes


def num_slots(p: Params) -> int:
    """Return the layers that an even split counts: embedding and loss may count as one each."""
    return num_layers(p) + sum(bool(p[key]) for key in _ACCOUNTS)


_DIGITS = 3
"""Of a repetition in a layout: a larger one is a slip, and would fill the memory before it could be counted."""


def layout_stages(p: Params) -> list[str]:
    """Return the letters of each stage of `pipeline_model_parallel_layout`; Unreadable if it cannot be read."""
    given = p[LAYOUT]
    if isinstance(given, str):
        return _expanded(given)
    try:
        return ["".join(_NAMES[name] for name in stage) for stage in given]
    except (KeyError, TypeError) as error:
        raise Unreadable(LAYOUT) from error


def chosen_ways(p: Params) -> list[str]:
    """Return the keys in use of those that place layers, one of each group."""
    groups: tuple[tuple[str, ...], ...] = ((LAYOUT,), (MANUAL,), ENDS, (STANDALONE,), _ACCOUNTS)
    return [key for keys in groups for key in [next((key for key in keys if p[key]), None)] if key]


def layers_are_placed_in_one_way(p: Params) -> Problems:
    """Each of these says where all layers stand."""
    ways = chosen_ways(p)
    if len(ways) > 1:
        yield f"{' and '.join(p.where(key) for key in ways)} exclude each other: each places the layers on stages; keep one."


def layout_is_a_model(p: Params) -> Problems:
    """Embedding first, loss last, every layer once, and as many stages as ranks or a multiple."""
    if p[LAYOUT] is None:
        return
    where, depth, ranks = p.where(LAYOUT), num_layers(p), p["pipeline_model_parallel_size"]
    grammar = "stages are separated by |, E is the embedding, t a layer, L the loss, t*3 and (tt|)*3 repeat, up to 999 times"
    try:
        stages = layout_stages(p)
    except Unreadable:
        yield f"{where} cannot be read: {grammar}; a list has a list of embedding, decoder, mtp, loss for each stage."
        return
    flat = "".join(stages)
    further = p["mtp_num_layers"] or 0
    if flat.count("m") not in (0, further) or "m" in "".join(stages[:-1]):
        yield (
            f"{where} has {flat.count('m')} prediction layers (m), but {p.where('mtp_num_layers')}, and all of them run on the "
            "last stage; they may be left out."
        )
    elif not re.fullmatch("Et*m*L", flat):
        yield f"{where} must start with one E, end with one L and have layers (t) between them; {grammar}."
    elif flat.count("t") != depth:
        yield f"{where} has {flat.count('t')} layers (t), but num_layers is {depth}."
    if len(stages) % ranks:
        yield f"{where} has {len(stages)} stages, no multiple of {p.where('pipeline_model_parallel_size')}."


def manual_split_fits(p: Params) -> Problems:
    """One number a stage, together all layers."""
    if p[MANUAL] is None:
        return
    sizes, depth, ranks = p[MANUAL], num_layers(p), p["pipeline_model_parallel_size"]
    if any(size < 0 for size in sizes) or sum(sizes) != depth or not sizes or len(sizes) % ranks:
        yield (
            f"{p.where(MANUAL)} must list the layers of each stage: numbers from 0 that add up to num_layers {depth}, as "
            f"many as pipeline_model_parallel_size {ranks} times the model chunks of a rank."
        )


def ends_leave_an_even_middle(p: Params) -> Problems:
    """The stages between the first and the last share what is left."""
    given = [key for key in ENDS if p[key] is not None]
    ranks = p["pipeline_model_parallel_size"]
    if not given or ranks == 1:
        return
    rest, middle = num_layers(p) - sum(p[key] for key in given), ranks - len(given)
    if rest < 0 or (rest % middle if middle else rest):
        words = " and ".join(p.where(key) for key in given)
        yield f"{words} leave {rest} of {num_layers(p)} layers for {middle} other pipeline ranks: let them divide evenly."


def depth_divides_or_is_padded(p: Params) -> Problems:
    """Without padding all stages are equal."""
    ranks = p["pipeline_model_parallel_size"]
    slots = num_slots(p)
    if ranks == 1 or p["allow_padding_num_layers"] or set(chosen_ways(p)) - set(_ACCOUNTS):
        return
    if slots % ranks:
        yield (
            f"{slots_text(p)} are not divisible by {p.where('pipeline_model_parallel_size')}: choose another depth or size, "
            "or set allow_padding_num_layers: true."
        )


def accounted_ends_have_room(p: Params) -> Problems:
    """The stage of an accounted embedding or loss has a layer to give for it."""
    ranks = p["pipeline_model_parallel_size"]
    if ranks > 1 and any(p[key] for key in _ACCOUNTS) and chosen_ways(p) == [next(key for key in _ACCOUNTS if p[key])]:
        first, last = even_split(num_slots(p), ranks)[:: ranks - 1]
        if first - p[_ACCOUNTS[0]] < 0 or last - p[_ACCOUNTS[1]] < 0:
            yield f"{slots_text(p)} leave the last of {ranks} stages without a layer to give for the loss; use fewer stages."


def slots_text(p: Params) -> str:
    """Return the number of layers that an even split divides, in words."""
    return f"{num_slots(p)} layers{_accounted(p)}"


RULES: tuple[Rule, ...] = (
    layers_are_placed_in_one_way,
    layout_is_a_model,
    manual_split_fits,
    ends_leave_an_even_middle,
    depth_divides_or_is_padded,
    accounted_ends_have_room,
)


def _accounted(p: Params) -> str:
    names = [word for key, word in zip(_ACCOUNTS, ("embedding", "loss"), strict=True) if p[key]]
    return f" (with {' and '.join(names)})" if names else ""


def _even(p: Params, num_chunks: int) -> tuple[int, ...]:
    sizes = list(even_split(num_slots(p), p["pipeline_model_parallel_size"] * num_chunks))
    sizes[0] -= p[_ACCOUNTS[0]]
    sizes[-1] -= p[_ACCOUNTS[1]]
    return tuple(sizes)


def _with_ends(p: Params, num_chunks: int) -> tuple[int, ...]:
    """Each rank's layers are divided over its chunks."""
    ranks, (first, last) = p["pipeline_model_parallel_size"], (p[key] for key in ENDS)
    given = [n for n in (first, last) if n is not None]
    if len(given) > ranks:
        raise Unreadable(ENDS[0])
    middle, rest = ranks - len(given), num_layers(p) - sum(given)
    share = rest // middle if middle else 0
    of_rank = [share] * ranks
    of_rank[0] = share if first is None else first
    of_rank[-1] = of_rank[-1] if last is None else last
    if any(n % num_chunks for n in of_rank):
        raise Unreadable(ENDS[0])
    return tuple(n // num_chunks for n in of_rank) * num_chunks


def _expanded(text: str) -> list[str]:
    """Write all repetitions out and cut at the stages."""
    text = text.replace(",", "")
    if any(len(digits) > _DIGITS for digits in re.findall(r"\d+", text)):
        raise Unreadable(LAYOUT)
    text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda match: match[1] * int(match[2]), text)
    text = re.sub(r"(.)\*(\d+)", lambda match: match[1] * int(match[2]), text)
    if re.search(r"[^EtmL|]", text):
        raise Unreadable(LAYOUT)
    return text.split("|")
