"""POST /v1/chat/completions: the wire (schema), its meaning (request), its answers (response), its door (route)."""
