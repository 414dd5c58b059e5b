"""The discipline of a GPU, checked without one: jobs on a pretended CUDA device that computes on the CPU."""
