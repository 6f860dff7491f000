"""Speculation: guesses of the next tokens (drafts), how many of them are worth verifying, and which of them stand."""
