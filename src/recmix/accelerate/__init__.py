"""Fast paths: CUDA graphs, Triton kernels, stacked networks and capturable optimisers."""
