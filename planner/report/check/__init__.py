"""The answer of ``plan check``."""
