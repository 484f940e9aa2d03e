"""The decision space of a task, the search over it, and the tuning run."""
