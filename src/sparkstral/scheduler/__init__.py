"""Which tokens of which requests the next step computes, and what its result means for each request. No
torch."""
