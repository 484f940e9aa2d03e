"""Terminal tables and progress."""
