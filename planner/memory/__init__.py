"""Bytes: one file per kind of term; ``peak`` says which of them live at the same time."""
