"""What a transformer under a recipe is made of: dtypes, parameter groups, adapters, sample lengths."""
