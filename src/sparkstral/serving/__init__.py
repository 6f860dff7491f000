"""One request, from the text world through the token world and back."""
