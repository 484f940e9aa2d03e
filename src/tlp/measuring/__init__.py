"""Build and run workers: forked from a parent that has TVM loaded and has run no kernel."""
