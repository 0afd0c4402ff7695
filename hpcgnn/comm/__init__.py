"""The only room that talks to MPI, NCCL or gloo."""
