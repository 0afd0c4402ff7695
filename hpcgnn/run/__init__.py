"""The loop: trainer, checkpoint, signals, logging and metrics."""
