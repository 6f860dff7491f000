"""HTTP: OpenAI's and Anthropic's protocols over the serving room. Knows no tensor and no scheduler."""
