"""POST /v1/chat/completions: wire (schema), meaning (request), answers (response), door (route)."""
