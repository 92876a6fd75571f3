"""Predict memory, host RAM and step time of a fine-tuning job, term by term."""

__version__ = "0.1.0"
