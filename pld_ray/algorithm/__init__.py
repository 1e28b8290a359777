"""The mathematics of what is learnt, in plain PyTorch: no Ray, no environment."""
