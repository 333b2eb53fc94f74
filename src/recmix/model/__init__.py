"""The model p(x, z): priors, likelihoods, encoders and decoders."""
