"""Measured programs: statuses, the run's SQLite store."""
