"""How much memory serving takes, line by line, before a byte of it is allocated. No torch."""
