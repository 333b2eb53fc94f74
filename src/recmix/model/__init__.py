"""The model p(x, z): priors, likelihoods and networks."""
