"""A document of a published schema as text that any terminal and any pipe can carry."""

from __future__ import annotations

import json
import re

from pydantic import BaseModel

# Outside strings JSON is plain ASCII, so whatever matches is inside one.
_NOT_PLAIN = re.compile(r"[^\n\x20-\x7e]")


def document_text(document: BaseModel) -> str:
    """``document`` as indented JSON in ASCII: letters that an encoding lacks and control characters escaped."""
    text = document.model_dump_json(by_alias=True, indent=2)
    return _NOT_PLAIN.sub(lambda found: json.dumps(found.group())[1:-1].replace("\x7f", "\\u007f"), text) + "\n"
