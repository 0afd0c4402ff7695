"""Snapshot graphs: a sequence of graphs on the same nodes, trained whole, by halo exchange."""
