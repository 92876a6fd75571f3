"""Which text models Transformers has with a head of labels."""

from __future__ import annotations

from planner.catalog.architectures import _MODULE_OF
from planner.intake.supported import NO_LABELS
from tests.extras import import_or_skip


def test_models_without_a_head_of_labels_are_those_that_transformers_does_not_list() -> None:
    """Every text architecture that has a reader."""
    auto = import_or_skip("transformers.models.auto.modeling_auto")
    text = [name for name, module in _MODULE_OF.items() if not module.startswith("vision.")]
    listed = auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    assert {name for name in text if name not in listed} == NO_LABELS
