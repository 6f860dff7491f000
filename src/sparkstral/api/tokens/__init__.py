"""POST /tokenize, /detokenize and /render: what the model sees, for people and programs that count."""
