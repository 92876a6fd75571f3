"""Before and behind the layers: token table, head, losses, preferences, generation."""
