"""What the paper prints: its forms, its assumptions and its numbers."""
