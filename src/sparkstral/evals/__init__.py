"""Measures of what a served model can do, taken through the same HTTP door that users have."""
