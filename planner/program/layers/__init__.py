"""A layer and its parts: attention, feed-forward, experts, norms, layers that keep a state."""
