"""The books of the latent cache: which block holds what, for whom, and what may be reused. No tensor, no
torch."""
