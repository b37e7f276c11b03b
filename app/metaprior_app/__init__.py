"""A local page to fit and try priors, and reports of fits as HTML."""
