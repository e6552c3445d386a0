"""Training on a Tinker server: the weights, the gradients and Adam are there; what is learnt is decided here."""
