"""What fleets coordinate with: one folder a noun, with its rules, service, views and text."""
