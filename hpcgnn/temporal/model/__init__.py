"""Models of temporal graphs, put together from parts: pure torch."""
