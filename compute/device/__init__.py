"""Programs on a CUDA device."""
