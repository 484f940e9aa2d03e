"""The schedule language: primitives of both frameworks, and their encoding to arrays."""
