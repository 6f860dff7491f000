"""A planned step, carried out on the device: batch, forward pass, constraint, sampled token."""
