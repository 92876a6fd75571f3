"""Readers of models whose every layer has attention and one feed-forward network."""
