"""Seconds: work divided by rates, one file per kind of term; ``step`` says which of them overlap."""
