"""Readers of models that see images: the text model and its tower."""
