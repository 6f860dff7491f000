"""One folder an operation: contract in `__init__`, plain PyTorch in `reference`, later a fast kernel.

Owns arithmetic on tensors; must not know what a layer, a request or a checkpoint is. Both versions of an
operation obey the contract, and the reference is what a fast kernel is measured against.
"""
