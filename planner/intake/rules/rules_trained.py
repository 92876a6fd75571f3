"""Rules about full fine-tunes that train some layers only."""

from __future__ import annotations

from planner.intake.rules.rule import Case, not_modelled, refuse, warn
from planner.intake.train_layers import drawn, missing_layers, trained_parts


def _missing_layers(case: Case) -> tuple[str, ...]:
    return missing_layers(case.recipe.train_layers, case.model.n_layers)


def _trains_something(case: Case) -> bool:
    parts = trained_parts(case.recipe.train_layers, case.model.n_layers, tied=case.model.tied)
    return bool(parts.layers or parts.ends)


def _freezes_checkpointed(case: Case) -> bool:
    """Whether checkpointing meets frozen layers over a frozen table."""
    layers = case.recipe.train_layers
    tied_head = case.model.tied and "head" in layers
    return bool(layers) and case.recipe.gradient_checkpointing and "embed" not in layers and not tied_head


def _names_tied_head(case: Case) -> bool:
    """Whether the head is named that is the table, which torch lists under the name of the table alone.

    Source: torch 2.13 nn/modules/module.py named_parameters; axolotl 0.19.0 utils/freeze.py, whose dry run
    with ``^lm_head.weight$`` trains nothing of it; llamafactory 0.9.5 model/adapter.py _setup_freeze_tuning.
    """
    layers = case.recipe.train_layers
    return case.model.tied and "head" in layers and "embed" not in layers


def _trains_partly(case: Case) -> bool:
    """Whether some weights of the model are trained and others are frozen."""
    return case.recipe.method == "full" and bool(case.recipe.train_layers or case.recipe.frozen)


def _draws(case: Case) -> bool:
    return drawn(case.recipe.train_layers) is not None


def _all_were_drawn(case: Case) -> str:
    found = drawn(case.recipe.train_layers)
    assert found is not None
    n_layers, steps = case.model.n_layers, found.steps_to_all(case.model.n_layers)
    return f"{found.count} of {n_layers} layers every {found.interval} steps: about step {steps:,}"


# States of others are made elsewhere than parameter by parameter, or lie beside the allocator's.
_DRAWN_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adamw_8bit", "sgd", "lion")

TRAINED_LAYER_RULES = (
    refuse(
        "train-layers-with-adapters",
        "train_layers says what a full fine-tune trains; beside adapters use --modules-to-save, or use "
        "--method full",
        lambda case: bool(case.recipe.train_layers) and case.recipe.method != "full",
    ),
    warn(
        "train-layers-not-there",
        "train_layers names layers that the model does not have, which are counted as nothing",
        lambda case: bool(_missing_layers(case)),
        lambda case: (
            f"{', '.join(_missing_layers(case))}; {case.model.id} has 0 to {case.model.n_layers - 1}"
        ),
    ),
    refuse(
        "train-layers-tied-head",
        "The head of this model is its token table, and tools that look for its name train nothing there; "
        "leave head out, and say embed (embed_tokens in a file) where the table is trained",
        _names_tied_head,
        lambda case: case.model.id,
    ),
    refuse(
        "train-layers-match-nothing",
        "No layer of the model is among train_layers, and nothing around the layers",
        lambda case: bool(case.recipe.train_layers) and not _trains_something(case),
        lambda case: f"{case.model.id} has layers 0 to {case.model.n_layers - 1}",
    ),
    not_modelled(
        "train-layers-divided",
        "FSDP1 was not read for units of which only some are trained; use --sharding fsdp, which is "
        "FSDP2, ZeRO or ddp",
        lambda case: _trains_partly(case) and case.recipe.sharding.is_fsdp1,
    ),
    not_modelled(
        "train-layers-checkpointing-unread",
        "Nobody read what the checkpointing of this stack makes of frozen layers; use "
        "--no-gradient-checkpointing, or --switches frozen_layers=skipped where the inputs of frozen "
        "layers require no gradients",
        lambda case: (
            _freezes_checkpointed(case)
            and (case.stack.frozen_layers == "unread" or case.stack.checkpoints_parts)
        ),
        lambda case: case.stack.id,
    ),
    refuse(
        # torch 2.13 utils/checkpoint.py: CheckpointFunction, an autograd function of the input alone.
        "train-layers-without-gradients",
        "Reentrant checkpointing gives weights no gradients where its input requires none, as in this "
        "stack below trained layers; use --no-checkpoint-reentrant",
        lambda case: (
            _freezes_checkpointed(case)
            and case.recipe.checkpoint_reentrant
            and case.stack.frozen_layers == "skipped"
        ),
        lambda case: case.stack.id,
    ),
    not_modelled(
        "train-layers-with-offload",
        "Training some layers only is not modelled with activations in host RAM, nor where the model has "
        "projections around its layers",
        lambda case: (
            bool(case.recipe.train_layers)
            and (case.recipe.offloads_activations or bool(case.model.extra_linears))
        ),
    ),
    not_modelled(
        "train-layers-ends-in-pieces",
        "A loss that multiplies by the head in pieces is modelled over trained layers or "
        "tables; use --loss hf",
        lambda case: (
            bool(case.recipe.train_layers)
            and case.recipe.loss != "hf"
            and not set(case.recipe.train_layers) - {"norm", "head"}
        ),
    ),
    warn(
        "drawn-layers",
        "States of layers that were trained before stay, so memory grows: counted is the most, "
        "when each layer has been drawn",
        _draws,
        _all_were_drawn,
    ),
    not_modelled(
        "drawn-layers-elsewhere",
        "Layers that are drawn anew are modelled on one process, with tables that are trained, and an "
        "optimizer of torch or 8-bit AdamW; use --sharding none, --optimizer adamw_torch",
        lambda case: (
            _draws(case)
            and (
                case.recipe.sharding.communicates
                or case.recipe.sharding.engine != "native"
                or case.recipe.optimizer not in _DRAWN_OPTIMIZERS
                or "embed" not in case.recipe.train_layers
            )
        ),
    ),
)
