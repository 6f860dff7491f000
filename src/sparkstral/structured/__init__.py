"""Constrained output: grammars compiled beside the step loop, and the mask of what may come next."""
