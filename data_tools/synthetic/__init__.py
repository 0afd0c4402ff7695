"""Seeded synthetic graphs, the same for the same arguments."""
