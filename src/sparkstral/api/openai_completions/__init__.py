"""POST /v1/completions, OpenAI's older protocol: a text is gone on with."""
