"""/v1/responses: wire (schema), meaning (request), answers (response), memory (store), door (route)."""
