"""What people and programs speak to: every face is derived from one table of operations."""
