"""Everything that takes one training step."""
