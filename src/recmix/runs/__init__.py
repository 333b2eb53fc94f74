"""Read and write run folders. A run is one training of a model. Reading needs no torch."""
