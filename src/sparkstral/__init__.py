"""One model, one machine class, one program: Mistral Small 4 on a DGX Spark."""
