"""Tasks: published once, worked on by one agent at a time, done once."""
