"""Makes the demo checkpoint: tokenizer file, training, NVFP4 export. See README.md beside this file."""
