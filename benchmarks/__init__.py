"""One command for each published figure; results lie in `results/`."""
