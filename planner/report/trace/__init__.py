"""The trace of ``measure`` beside the prediction."""
