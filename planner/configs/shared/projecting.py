"""Optimizers that project gradients, APOLLO and GaLore: over which matrices, to which rank, and when.

Source: transformers 5.23.0 trainer_optimizer.py _setup_low_rank_optimizer, _get_galore_optimizer and
_get_apollo_optimizer, trainer_utils.py check_target_module_exists.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.configs.said_by_file import Alone, Reading
from planner.configs.shared.keys import Keys
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS, Optimizer
from planner.errors import show
from planner.files.expressions import compiled
from planner.words import words

LAYERWISE = "_layerwise"
"""What the Trainer's names end with where each parameter is updated in the backward pass."""
_MODULES = words("""
    self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj
    mlp.gate_proj mlp.up_proj mlp.down_proj
""")
_HEAD = "lm_head"
_TARGETS = "optim_target_modules"
_DETAILS = {"proj_type": "std", "proj": "random"}
"""Details of a projection, and the one value of each that is modelled."""


def say_projecting(keys: Keys, key: str, optimizer: Optimizer, reading: Reading) -> None:
    """Enter what the Trainer makes of an optimizer that ``key`` names and that projects.

    Raises:
        UsageError: what Transformers stops at.
        NotModelledError: another projection, or one of some matrices only.
    """
    name, where = str(keys.get(key)), keys.where(key)
    if not keys.has(_TARGETS):
        raise keys.stops(key, f"Transformers stops at {show(name)} without {_TARGETS}")
    if need_all_matrices(keys, _TARGETS, _targets(keys)):
        reading.switch("projects_head", True, keys.where(_TARGETS))
    _read_details(keys, reading)
    if name.lower().endswith(LAYERWISE):
        if optimizer == "galore_adafactor":
            raise keys.stops(
                key, "GaLore's Adafactor stops layer by layer at its learning rate; galore_adamw goes"
            )
        say_in_backward(keys, key, reading, "Transformers")
    reading.default("optimizer_rank", 128, "transformers 5.23.0 trainer_optimizer.py: rank")
    reading.say("optimizer", optimizer, where)


def remark_on_targets(keys: Keys, reading: Reading) -> None:
    """Tell of matrices that a file names for an optimizer that does not project."""
    projecting = [name for name, facts in OPTIMIZER_FACTS.items() if facts.projects]
    if keys.get(_TARGETS) is not None and reading.value("optimizer") not in projecting:
        reading.remark(keys.where(_TARGETS), "heeded for APOLLO and GaLore alone")


def need_all_matrices(keys: Keys, key: str, matches: Callable[[str], bool]) -> bool:
    """Whether the head is projected, where all matrices of a layer are.

    Raises:
        NotModelledError: some are, and others are not.
    """
    if not all(matches(f"model.layers.0.{module}") for module in _MODULES):
        raise keys.not_modelled(
            key,
            "projecting the gradients of some matrices only is not modelled; all of attention and MLP are",
        )
    return matches(_HEAD)


def contains_one_of(names: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether one of ``names`` is in the path of a module."""
    return lambda path: any(name in path for name in names)


def say_in_backward(keys: Keys, key: str, reading: Reading, tool: str) -> None:
    """Enter that each parameter is updated in the backward pass, which goes on one GPU without accumulation.

    Raises:
        UsageError: micro-batches that are accumulated.
    """
    what = "layer-wise APOLLO" if "apollo" in key or "apollo" in str(keys.get(key)) else "layer-wise GaLore"
    if (keys.count("gradient_accumulation_steps") or 1) > 1:
        raise keys.stops(key, f"{tool} stops beside gradient_accumulation_steps above 1")
    reading.say("optimizer_in_backward", True, keys.where(key))
    reading.alone = Alone(keys.where(key), f"{tool} refuses {what} on several GPUs")


def _targets(keys: Keys) -> Callable[[str], bool]:
    """One text is an expression, or all linear layers; a list has parts of paths, or expressions."""
    value = keys.get(_TARGETS)
    if isinstance(value, str):
        everything = value.replace("_", "-") == "all-linear"
        return (lambda _: True) if everything else _matching(value)
    names = keys.names(_TARGETS)
    inside, patterns = contains_one_of(names), [_matching(name) for name in names]
    return lambda path: inside(path) or any(matches(path) for matches in patterns)


def _matching(pattern: str) -> Callable[[str], bool]:
    found = compiled(pattern, _TARGETS)
    return lambda path: found.fullmatch(path) is not None


def _read_details(keys: Keys, reading: Reading) -> None:
    """``optim_args``: ``rank=64,proj_type=std`` or, in files of Axolotl, a table of these."""
    value, where = keys.get("optim_args"), keys.where("optim_args")
    if value is None:
        return
    if not isinstance(value, dict | str):
        raise keys.wrong("optim_args", "text such as rank=64, or a table", value)
    pairs = (
        value.items()
        if isinstance(value, dict)
        else (each.partition("=")[::2] for each in value.replace(" ", "").split(","))
    )
    given = {str(name): str(each) for name, each in pairs}
    for name, modelled in _DETAILS.items():
        if given.get(name, modelled) != modelled:
            raise keys.not_modelled(
                "optim_args", f"{name} '{show(given[name])}' is not modelled; {modelled} is"
            )
    rank = given.get("rank")
    if rank is not None:
        if not (rank.isdecimal() and 0 < int(rank[:9]) <= 65_536):
            raise keys.wrong("optim_args", "a rank of 1 to 65,536 where it names one", value)
        reading.say("optimizer_rank", int(rank), where)
