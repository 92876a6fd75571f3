"""What a replay reads and writes: histories, documents, pictures."""
