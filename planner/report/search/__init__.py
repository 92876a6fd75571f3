"""The answer of a search."""
