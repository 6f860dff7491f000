"""HTTP: the OpenAI protocol over the serving room. Knows no tensor and no scheduler."""
