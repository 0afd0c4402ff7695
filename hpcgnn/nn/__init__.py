"""Pure torch: layers and models. No MPI, no HDF5."""
