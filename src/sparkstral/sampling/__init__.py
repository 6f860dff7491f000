"""From logits to the next token, one row for each request, whatever else is in the batch."""
