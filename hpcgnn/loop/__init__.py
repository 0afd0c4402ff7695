"""What every run does, whatever the kind of graph: the loop, checkpoints, records, and where plans are made."""
