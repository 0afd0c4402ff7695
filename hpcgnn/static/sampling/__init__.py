"""Draws the steps of static graphs: their seeds and negatives, and neighbors hop by hop, on any number of ranks."""
