"""Losses and metrics on lists of candidates, and the judge that compares models by them."""
