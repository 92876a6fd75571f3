"""The trace of ``measure`` beside the closed form."""
