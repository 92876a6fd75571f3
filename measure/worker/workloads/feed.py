"""Synthetic token ids with the planned lengths."""

from __future__ import annotations

from itertools import cycle

import torch

from measure.run.cases.lengths import MicroBatch
from planner.domain.scenario import Scenario

_IGNORED_LABEL = -100


class Collator:
    """What the collator of the job's stack hands over, on the CPU: token ids, labels and what tells samples
    apart.
    """

    def __init__(self, scenario: Scenario, vocabulary: int, seed: int) -> None:
        recipe, stack = scenario.recipe, scenario.stack
        self._joins = stack.joins_rows(recipe)
        self._has_positions = stack.places_samples and stack.masks_samples(recipe)
        self._vocabulary = vocabulary
        self._generator = torch.Generator().manual_seed(seed)

    def tensors(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        """A micro-batch: padded on the right with a mask;
        or packed with positions, two samples in each row.
        """
        rows, width = len(batch.lengths), batch.width_tokens
        shape = (1, rows * width) if self._joins else (rows, width)
        ids = torch.randint(0, self._vocabulary, shape, generator=self._generator)
        if self._has_positions:
            positions = torch.arange(shape[1]) % -(-width // 2)
            return {"input_ids": ids, "position_ids": positions.expand(shape), "labels": ids}
        real = torch.arange(width)[None, :] < torch.tensor(batch.lengths)[:, None]
        return {
            "input_ids": torch.where(real, ids, 0),
            "attention_mask": real.to(torch.int64),
            "labels": torch.where(real, ids, _IGNORED_LABEL),
        }


class Feed:
    """Micro-batches in their order, again and again."""

    def __init__(self, batches: tuple[MicroBatch, ...], collator: Collator) -> None:
        self._batches = cycle(batches)
        self._collator = collator

    def next(self) -> tuple[MicroBatch, dict[str, torch.Tensor]]:
        """The next micro-batch and its tensors."""
        batch = next(self._batches)
        return batch, self._collator.tensors(batch)
