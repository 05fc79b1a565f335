"""The packed memory array on a CUDA device: the twin of the host's, with leaves of 64 slots."""
