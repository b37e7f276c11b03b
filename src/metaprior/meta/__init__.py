"""Many tasks: the hyper-prior, the weighted free energy, and MAP, SVGD and Laplace over theta."""
