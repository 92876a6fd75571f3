"""What makes a program believe that it is on a card: torch.cuda, its bindings, streams and launches."""
