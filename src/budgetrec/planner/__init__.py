"""The planner, values in a row: Request -> Measurements (bytes, seconds, noise) -> Search -> Plan."""
