"""POST /v1/messages and its count_tokens: wire (schema), meaning (request), answers (response), door (route)."""
