"""A model in use: priors that are known, decisions, sets, and answers that may be "I do not know"."""
