"""The largest micro-batch or length that fits, or the fewest GPUs on which something does."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from planner.domain.recipes.recipe import Number
from planner.errors import RefusedCombinationError, UsageError
from planner.intake.given.fields import REQUEST_FIELDS
from planner.intake.model_parallel import group_gpus
from planner.intake.resolve import complete
from planner.searching.recipes.answer import (
    Choice,
    FoundRecipes,
    Quantity,
    RecipeGroup,
    answer_of,
    place_of,
    values_tried,
)
from planner.searching.recipes.attempt import Model, ModelFor, Tried, confirmed, rank
from planner.searching.recipes.choose import all_options, by_place, try_sizes
from planner.searching.recipes.counts import counted_places, world_of
from planner.searching.recipes.pool import Explorer, Pool, Training
from planner.searching.recipes.settle import Settled, settle
from planner.searching.recipes.space import Option, OptionGroup, Space, TypedFlags, sizes

SEQ_STEP_TOKENS = 64
"""Lengths are told apart to this many tokens."""
_FASTER = 1.01
MAX_BEYOND_CONTEXT_TOKENS = 4_194_304
"""The longest length that is tried beyond the positions that a model was made for."""


@dataclass(frozen=True, slots=True)
class _Line:
    """Values of one quantity: ``start``, then multiples of ``step`` up to ``highest``;
    ``more`` flags go with each.
    """

    quantity: Quantity
    start: int
    step: int
    highest: int
    more: TypedFlags

    def flags(self, value: int) -> dict[str, str | bool]:
        """The flags that ask for one value."""
        return {**self.more, self.quantity: str(value)}

    def above(self, value: int, last: int) -> range:
        """Values above one, up to another."""
        return range((value // self.step + 1) * self.step, min(last, self.highest) + 1, self.step)


def solve(pool: Pool, model_for: ModelFor, quantity: Quantity, *, top: int = 3) -> FoundRecipes:
    """The recipes with the most of ``quantity``, largest first, the fastest of all last;
    for ``gpus`` with the fewest.

    Raises:
        UsageError: the quantity was given, or there is nothing to try.
        RefusedCombinationError: every recipe breaks a rule.
        NotModelledError: no formula covers the model.
    """
    space = pool.space
    if quantity == "gpus":
        return _fewest_gpus(pool, model_for, top)
    if space.is_given(quantity):
        typed = quantity in space.fixed or quantity in space.choices
        flags = (
            f"{REQUEST_FIELDS[quantity].flag} out"
            if typed
            else f"it out of {space.config.request.values[quantity].origin}"
        )
        raise UsageError(f"--solve {quantity} finds it, so leave {flags}")
    if quantity == "seq":
        # An option has to have some length; that of the answer is put over it.
        batch = {} if space.is_given("batch") or space.global_batch else {"batch": "1"}
        pool.space = space = replace(space, fixed={**space.fixed, **batch, "seq": str(_shortest(space))})
    explorer = explorer_of(pool, quantity)
    for options, model in all_options(pool, model_for, space.places()):
        # A card on which something fits as it is has to answer with no less than a smaller one that offloads.
        pool.explore_all(options, model, explorer)
    choice = partial(_largest, size=size_of(quantity), top=top)
    settled: dict[int, Settled] = {}
    answer = answer_of(pool, choice, partial(_settle_down, pool=pool, quantity=quantity, settled=settled))
    exact = [
        _exact(pool, quantity, choice, group, settled) if group.rows else group for group in answer.groups
    ]
    groups = tuple(_largest_first(exact, quantity))
    # The sizes of the answer itself were found by replays, beside those that the search tried.
    every = chain(*pool.by_training.values(), *(group.rows for group in groups))
    return replace(answer, solved=quantity, groups=groups, tried=values_tried(every))


def _exact(
    pool: Pool, quantity: Quantity, choice: Choice, group: RecipeGroup, settled: dict[int, Settled]
) -> RecipeGroup:
    """The first row of ``group`` is the largest that fits when replayed, and the next above it does not."""
    rows = choice([*group.rows])
    while id(rows[0]) not in settled:
        made = _settled(pool, quantity, rows[0], rows[0])
        settled[id(made.found)] = made
        rows = choice([made.found, *rows[1:]])
    return replace(group, rows=rows, above=settled[id(rows[0])].above)


def _settle_down(quick: Tried, *, pool: Pool, quantity: Quantity, settled: dict[int, Settled]) -> Tried:
    """``quick`` replayed; where that does not fit, the largest that does, if any, noted in ``settled``."""
    again = confirmed(quick)
    if pool.fits(again):
        return again
    made = _settled(pool, quantity, quick, again)
    settled[id(made.found)] = made
    return made.found


def _settled(pool: Pool, quantity: Quantity, quick: Tried, again: Tried) -> Settled:
    """The largest about ``quick`` that fits, which is ``again`` when it is replayed."""
    size = size_of(quantity)
    if quantity == "batch" and pool.space.global_batch:
        # Only those were tried that divide it.
        larger = _others(quick, pool, quantity)
        replays = [confirmed(each) for each in larger if size(each) > size(again)] if pool.fits(again) else []
        fitting = [each for each in replays if pool.fits(each)]
        found = max(fitting, key=size, default=again)
        return Settled(
            found, min((each for each in replays if size(each) > size(found)), key=size, default=None)
        )
    if quantity == "batch":
        start, step, last = 1, 1, int(REQUEST_FIELDS["batch"].high or 1)
    else:
        step, last = SEQ_STEP_TOKENS, _longest(pool.space, quick.option)
        start = _first_length(pool, quick.option, last)
    values = sorted({start, last, *range(start - start % step + step, last + 1, step)})
    return settle(pool, quick, again, quantity, values)


def _others(tried: Tried, pool: Pool, quantity: Quantity) -> list[Tried]:
    """What was tried with the same flags beside the quantity."""
    varying = ("batch", "grad_accum") if quantity == "batch" else (quantity,)
    every = (each for group in pool.by_training.values() for each in group)
    return [each for each in every if _without(each, varying) == _without(tried, varying)]


def _longest(space: Space, option: Option) -> int:
    """The longest length that is tried."""
    own = option.found.model.max_position_tokens
    return MAX_BEYOND_CONTEXT_TOKENS if own is None or space.beyond_context else own


def _largest_first(groups: Sequence[RecipeGroup], quantity: Quantity) -> list[RecipeGroup]:
    """Of ways of training between which nothing else decides, that with the most first."""
    size = size_of(quantity)
    return sorted(
        groups, key=lambda group: (*place_of(group)[:2], -float(size(group.rows[0])) if group.rows else 0.0)
    )


def explorer_of(pool: Pool, quantity: Quantity) -> Explorer:
    """What solves one option for the quantity;
    the pool's space already says the length that lengths begin with.
    """
    return (
        try_sizes if quantity == "batch" and pool.space.global_batch else partial(_explore, quantity=quantity)
    )


def _without(tried: Tried, names: tuple[str, ...]) -> dict[str, str | bool]:
    return {name: value for name, value in tried.flags.items() if name not in names}


def size_of(quantity: Quantity) -> Callable[[Tried], Number]:
    """What is solved for, of one recipe."""
    if quantity == "gpus":
        return lambda tried: tried.scenario.hardware.world_size
    if quantity == "batch":
        return lambda tried: tried.scenario.recipe.batch.micro_batch
    return lambda tried: tried.scenario.recipe.batch.seq_len


def _shortest(space: Space) -> int:
    """Where lengths begin: no sample is cut that has a length of its own."""
    given = space.fixed.get("tokens_per_sample", space.of_file("tokens_per_sample"))
    tokens = 1.0 if given is None else float(REQUEST_FIELDS["tokens_per_sample"].parse(given))
    return int(max(1, -(-tokens // SEQ_STEP_TOKENS)) * SEQ_STEP_TOKENS)


def _first_length(pool: Pool, option: Option, most: int) -> int:
    """Where lengths of an option begin: at one that the images of a sample fit into."""
    start = int(str(option.flags["seq"]))
    if option.found.model.vision is not None:
        try:
            # The length of the option itself may be too short for them.
            scenario = complete(pool.space.request(option.flags), option.found, force=True)
        except RefusedCombinationError:
            # Whatever is tried says so, too.
            return min(start, most)
        images = scenario.recipe.batch.images
        tokens = images.per_sample * images.tokens if images else 0
        start = max(start, -(-tokens // SEQ_STEP_TOKENS) * SEQ_STEP_TOKENS)
    return min(start, most)


def _explore(pool: Pool, option: Option, model: Model, *, quantity: Quantity) -> bool:
    """Solve one option with every given accumulation (length: every micro-batch); whether anything fits."""
    if quantity == "batch":
        accums = pool.space.values_of("grad_accum")
        more: list[TypedFlags] = [{"grad_accum": str(accum)} for accum in accums] or [{}]
        lines = [_Line("batch", 1, 1, int(REQUEST_FIELDS["batch"].high or 1), each) for each in more]
    else:
        most = _longest(pool.space, option)
        start = _first_length(pool, option, most)
        # Where no micro-batch was given the smallest goes farthest.
        runs = sizes(pool.space, option.found.hardware.world_size)
        taken = [each for run in runs for each in (run if pool.space.is_given("batch") else run[:1])]
        lines = [_Line("seq", start, SEQ_STEP_TOKENS, most, each) for each in taken]
    solved = [_most(pool, option, model, line) for line in lines]
    return any(solved)


def _most(pool: Pool, option: Option, model: Model, line: _Line) -> bool:
    """Whether anything on the line fits; what is tried goes into the pool.

    Doubles until something does not fit, and halves what is between until the largest that fits and the next
    above it are known.
    """

    def fits(value: int) -> bool:
        return pool.fits(pool.tries(option, model, line.flags(value)))

    good, value = 0, line.start
    while fits(value):
        good = value
        if value >= line.highest:
            return True
        value = min(2 * value, line.highest)
    if good:
        # Where it stops is in the pool.
        bisect_left(line.above(good, value - 1), True, key=lambda each: not fits(each))
    return good > 0


def _largest(fitting: list[Tried], size: Callable[[Tried], Number], top: int) -> tuple[Tried, ...]:
    """The place with the largest first.

    In each place the largest first, then smaller ones that are faster than all larger ones, the fastest at
    the end.  Where the largest offloads unasked, the largest without offload is among them.
    """
    places: list[list[Tried]] = []
    for same in by_place(fitting).values():
        kept: list[Tried] = []
        for tried in sorted(same, key=lambda each: (-size(each), rank(each))):
            if not kept or pace(tried) > _FASTER * pace(kept[-1]):
                kept.append(tried)
        kept = kept if len(kept) <= top else [*kept[: max(1, top - 1)], *kept[len(kept) - (top > 1) :]]
        plain = [tried for tried in same if not tried.offloads]
        if kept[0].offloads and plain:
            best = min(plain, key=lambda each: (-size(each), rank(each)))
            kept = sorted(
                {id(each): each for each in (*kept, best)}.values(),
                key=lambda each: (-size(each), rank(each)),
            )
        places.append(kept)
    places.sort(key=lambda kept: (-size(kept[0]), rank(kept[0])))
    return tuple(tried for kept in places for tried in kept)


def pace(tried: Tried) -> float:
    """Tokens per second, 0 where unknown."""
    return 0.0 if tried.prediction.time is None else float(tried.prediction.time.tokens_per_s)


def _fewest_gpus(pool: Pool, model_for: ModelFor, top: int) -> FoundRecipes:
    """Counts are tried from one GPU on,
    until every way of training fits on ``top`` of them without unasked offload.

    The most of them come first, because few jobs need more of a GPU with more GPUs and none much more.
    """
    space = pool.space
    if space.is_given("nodes") or "gpus" in space.choices:
        raise UsageError(
            "--solve gpus finds how many: leave --nodes out, and let --gpus say how many one node has"
        )
    for card in space.places():
        group = group_gpus(space.outline(card))
        places = [place for place in counted_places(space, card) if not world_of(place) % group]
        if not places:
            raise UsageError(
                f"no number of these GPUs that is tried divides into groups of {group}: leave --solve out"
            )
        counts = [place for place in places if any(sizes(space, world_of(place)))]
        if not counts:
            raise UsageError(
                f"{space.global_batch_text} cannot be divided over any number of these GPUs: say another"
            )
        _explore_counts(pool, model_for, counts, top)
    answer = answer_of(pool, partial(_best_of_each_place, offloads=space.is_given("offload"), top=top))
    return replace(answer, solved="gpus")


def _explore_counts(pool: Pool, model_for: ModelFor, counts: list[dict[str, str | bool]], top: int) -> None:
    """Try ``counts`` in their order until a way of training fits on ``top`` of them without unasked offload;
    several nodes only of what fits on the most of them.

    Raises:
        RefusedCombinationError: no number of GPUs can have what was given.
    """
    refused: list[RefusedCombinationError] = []

    def options_at(place: TypedFlags) -> list[tuple[OptionGroup, Model, Training]]:
        try:
            every = [*all_options(pool, model_for, [place])]
        except RefusedCombinationError as error:
            refused.append(error)
            return []
        return [(options, model, pool.training_of(options.first[0].flags)) for options, model in every]

    one_node = [place for place in counts if "nodes" not in place]
    several, on_most = counts[len(one_node) :], list[tuple[OptionGroup, Model, Training]]()
    while several and not on_most:
        on_most = options_at(several.pop())
    fit_on_most = {
        each for options, model, each in on_most if pool.explore(options, model, try_sizes) != "none"
    }
    fitted: Counter[Training] = Counter()
    for place in (*one_node, *several):
        for options, model, training in options_at(place):
            if fitted[training] < top and ("nodes" not in place or training in fit_on_most):
                fitted[training] += pool.explore(options, model, try_sizes) == "first"
    if not pool.by_training:
        raise refused[0]


def _best_of_each_place(fitting: list[Tried], offloads: bool, top: int) -> tuple[Tried, ...]:
    """The best recipe with the fewest GPUs, and those of more GPUs that need no offload;
    ``top`` places of each card.

    ``offloads``: whether offload was asked for.
    """
    rows: list[Tried] = []
    seen: Counter[str] = Counter()
    bests = [min(same, key=rank) for same in by_place(fitting).values()]
    for best in sorted(bests, key=lambda tried: (tried.scenario.hardware.world_size, rank(tried))):
        plain = offloads or not best.scenario.recipe.offloads_something
        if seen[best.place[0]] < top and (plain or not seen[best.place[0]]):
            seen[best.place[0]] += 1
            rows.append(best)
    return tuple(rows)
