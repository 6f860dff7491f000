"""The network: what Mistral Small 4 computes, given a `ForwardBatch` and the weights."""
