"""The training loop; it knows no planner."""
