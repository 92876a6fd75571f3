"""Callbacks for the training programs of others: each module here imports one of them."""
