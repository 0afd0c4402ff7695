"""The parts that runs on every kind of graph share: the loop, checkpoints, records, and where plans are made."""
