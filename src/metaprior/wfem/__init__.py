"""One task: networks, means, kernels, likelihoods and the prior they form; exact and Laplace inference."""
