"""Programs to record: what each shows is in its first line."""
