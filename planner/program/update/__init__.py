"""The optimizer: its states and what its step allocates."""
