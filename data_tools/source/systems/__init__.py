"""Reads the folders of other systems: OGB, RelBench, and partitions of PyTorch Geometric, graphlearn and ParMETIS."""
