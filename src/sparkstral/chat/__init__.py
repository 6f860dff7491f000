"""Text on one side, token ids on the other: history repair, rendering, grammars, meaning of the output.

Owns everything that is particular to the chat format of tekken v15. Must not know HTTP, a protocol's wire
form, sampling defaults, the engine, or a tensor. Source of the format: mistral-common, which encodes.
"""
