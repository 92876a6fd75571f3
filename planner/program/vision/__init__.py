"""What a vision-language model runs before its first layer: patches, tower, projector and scatter."""
