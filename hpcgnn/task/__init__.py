"""What is learnt, whatever the kind of graph: scores, losses, and metrics over whole splits."""
