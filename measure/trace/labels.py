"""Records -> events: the phase of every moment and the term of every block,
under the names that predictions use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from measure.trace.record import ASIDES
from planner.allocator.events import Action, AllocEvent
from planner.domain.term import Phase, TermName

if TYPE_CHECKING:
    from measure.trace.record import Record, TracedBlock

_OUTSIDE = -1  # as in modules.py, which imports torch
_OF_THEIR_OWN: dict[str, Phase] = {
    "load": "load",
    "adapters": "adapters",
    "optimizer_step": "optimizer_step",
    "eval": "eval",
}
_ROLE_TERMS: dict[str, TermName] = {
    "weights": "weights",
    "quantization_constants": "quantization_constants",
    "adapters": "adapters",
    "gradients": "gradients",
    "gradient_parts": "gradients",
    "optimizer_states": "optimizer_states",
    "autocast_copies": "autocast_copies",
    "dequantization": "dequantization",
    "workspace": "other_temporaries",
    "gathered_parameters": "gathered_parameters",
}


def to_events(records: Sequence[Record]) -> list[AllocEvent]:
    """Events of the card in ``records``, in the same order."""
    phases = phases_of_records(records)
    terms = terms_of_blocks(records, phases)
    return [
        AllocEvent(
            _action(record),
            record.block.id,
            record.block.n_bytes,
            stream=record.block.stream,
            phase=phase,
            term=terms.get(record.block.id, ""),
            op=record.block.op,
            module=record.block.module,
        )
        for record, phase in zip(records, phases, strict=True)
        if not record.block.on_host
    ]


def _action(record: Record) -> Action:
    if record.empties:
        return "empty_cache"
    return "alloc" if record.alloc else "free"


def phases_of_records(records: Sequence[Record]) -> list[Phase]:
    """Phase of each record.

    ``loss`` begins when the last decoder layer has run and ends when its backward begins: final norm, head,
    loss, and the gradient of the logits.
    """
    last_in_forward: dict[int, int] = {}
    first_in_backward: dict[int, int] = {}
    for index, record in enumerate(records):
        place = record.place
        if place.layer == _OUTSIDE:
            continue
        if place.stage == "forward":
            last_in_forward[place.micro_step] = index
        elif place.stage == "backward":
            first_in_backward.setdefault(place.micro_step, index)
    phases: list[Phase] = []
    trained: set[int] = set()  # micro-steps whose forward pass has begun
    for index, record in enumerate(records):
        place = record.place
        later = place.micro_step > 0
        phase: Phase
        if place.stage in ("divergence", "reference", "reference_2", "metrics"):
            ended = place.stage != "divergence" or place.micro_step in trained
            phase = ("loss_2" if later else "loss") if ended else ("forward_2" if later else "forward")
        elif place.stage == "forward":
            trained |= {place.micro_step} if place.layer != _OUTSIDE else set()
            ended = index > last_in_forward.get(place.micro_step, len(records))
            phase = ("loss_2" if later else "loss") if ended else ("forward_2" if later else "forward")
        elif place.stage == "backward":
            begun = index >= first_in_backward.get(place.micro_step, 0)
            phase = ("backward_2" if later else "backward") if begun else ("loss_2" if later else "loss")
        else:
            phase = _OF_THEIR_OWN[place.stage]
        phases.append(phase)
    return phases


def terms_of_blocks(records: Sequence[Record], phases: Sequence[Phase]) -> dict[int, TermName]:
    """Term of each block, by its id.

    What a pass allocates and backward frees is a saved activation.  What is freed within its own pass is
    a temporary: of its block, of logits and loss, or of the optimizer.
    """
    born: dict[int, Phase] = {}
    freed_in: dict[int, Phase] = {}
    for record, phase in zip(records, phases, strict=True):
        (born if record.alloc else freed_in).setdefault(record.block.id, phase)
    terms: dict[int, TermName] = {}
    for record in records:
        block = record.block
        if block.id not in terms and not record.empties:
            terms[block.id] = _term(block, born[block.id], freed_in.get(block.id))
    return terms


def _term(block: TracedBlock, born: Phase, freed: Phase | None) -> TermName:
    if block.role:
        return _ROLE_TERMS[block.role]
    if born in ("load", "adapters"):
        return "weights"
    if born == "optimizer_step":
        return "optimizer_temporaries"
    if born in ("loss", "loss_2"):
        return (
            "block_recompute"
            if block.place.stage in ASIDES and block.place.layer != _OUTSIDE
            else "logits_and_loss"
        )
    if born == "eval" and block.place.layer == _OUTSIDE:
        return "logits_and_loss"
    if born in ("forward", "forward_2") and block.place.stage == "forward":
        if freed is not None and freed.startswith("backward"):
            return "saved_activations"
        if block.place.layer == _OUTSIDE:
            return (
                "saved_activations" if freed is not None and freed.startswith("loss") else "other_temporaries"
            )
    return "block_recompute"
