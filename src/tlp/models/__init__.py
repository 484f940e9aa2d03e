"""Cost models: the scorer interface and the models that rank candidates."""
