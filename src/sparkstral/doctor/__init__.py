"""What a machine must have to serve the model, and what users suffered from: looked at before anything starts."""
