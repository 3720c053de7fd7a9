"""The planner, a chain of values: Request -> Measurements (bytes, seconds, noise) -> Search -> Plan."""
