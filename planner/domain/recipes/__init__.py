"""A training recipe and its parts."""
