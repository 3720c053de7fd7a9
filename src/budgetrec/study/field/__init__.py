"""The plan against other allocations."""
