"""Models that a program loads and prepares, and the adapters on them."""

from __future__ import annotations

import ast
from typing import Any

from planner.configs.programs.library_classes import ARGUMENTS
from planner.configs.programs.looks import NOT_COUNTED
from planner.configs.programs.python_calls import Card, PythonCalls
from planner.configs.programs.source import Source
from planner.configs.programs.values import Made, Model, Unknown
from planner.words import words

UNTRAINED = "adapters that are loaded"
"""What adapters are called that lie on a model and are not trained."""
_CONFIG = "adapter_config.json"
# What it says that moves no memory.
_HARMLESS = words(
    """
    auto_mapping base_model_name_or_path peft_version revision megatron_core qalora_group_size arrow_config
    """
)


class Models(PythonCalls):
    """What loading, preparing and adapting make; ``models``: all that were loaded."""

    def __init__(self, source: Source, card: Card) -> None:
        super().__init__(source, card)
        self.models: list[Model] = []

    def prepared_model(self, node: ast.Call) -> Model:
        """A model that PEFT prepares for training."""
        model = self._model(node, "prepares")
        model.prepared = Made("prepared", self.arguments(node, ARGUMENTS["prepares"])[1], node.lineno)
        return model

    def with_tokens(self, node: ast.Call) -> list[Any]:
        """A model and its tokenizer with the tokens of a chat, whose rows are not counted."""
        model = self._model(node, "get_peft_model")
        model.remarks.append((node.lineno, NOT_COUNTED["resize_token_embeddings"]))
        return [model, Unknown("tokenizer")]

    def loaded_model(self, node: ast.Call, two: str) -> Any:
        """A model that is loaded, with its tokenizer where Unsloth does it; ``two``: class and method."""
        given = self.arguments(node, ARGUMENTS["from_pretrained"])[1]
        for other in ("pretrained_model_name_or_path", "model_name_or_path"):
            if other in given:
                given["model_name"] = given.pop(other)
        model = Model(two.partition(".")[0], given, node.lineno)
        self.models.append(model)
        return [model, Unknown("tokenizer")] if two.startswith("Fast") else model

    def _model(self, node: ast.Call, names: str) -> Model:
        model = self.arguments(node, ARGUMENTS[names])[1].get("model")
        if not isinstance(model, Model):
            raise self.refused(node, "which model this is given is not known")
        return model

    def adapted_model(self, node: ast.Call, own: str) -> Model:
        """A model with new adapters; ``own``: whose, where the call itself says their settings, as no config
        of PEFT does.
        """
        names = "adapted" if own else "get_peft_model"
        model = self._model(node, names)
        if model.adapters is not None:
            raise self.refused(node, "adapters on adapters are not modelled")
        given = self.arguments(node, ARGUMENTS[names])[1]
        config = Made(own, given, node.lineno) if own else given.get("peft_config")
        if not isinstance(config, Made):
            raise self.refused(node, "which adapters these are is not known")
        model.adapters = config
        return model

    def with_loaded_adapters(self, node: ast.Call) -> Model:
        """A model with adapters of a folder, whose ``adapter_config.json`` says their size if it is there."""
        model = self._model(node, "loads_adapters")
        given = self.arguments(node, ARGUMENTS["loads_adapters"])[1]
        if model.adapters is not None:
            raise self.refused(node, "adapters on adapters are not modelled")
        folder = given.get("model_id")
        known = isinstance(folder, str)
        name = f"{folder if known else 'its folder'}/{_CONFIG}"
        found = self.table_of(name) if known else None
        open_ = {each: Unknown(f"{each} of {name}") for each in ("r", "target_modules")}
        table = open_ if found is None else found[0]
        kept = {each: value for each, value in table.items() if each not in _HARMLESS}
        trained = given.get("is_trainable") is True
        model.adapters = Made("LoraConfig" if trained else UNTRAINED, kept, node.lineno)
        return model

    def merged_model(self, model: Model, line: int) -> Model:
        """The model without its adapters, whose weights PEFT leaves frozen (peft 0.21.2
        tuners/tuners_utils.py merge_and_unload): those of its base, in their place.
        """
        model.adapters, model.frozen = None, line
        return model
