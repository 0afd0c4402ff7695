"""Models of static graphs, and the blocks that they compute on: pure torch."""
