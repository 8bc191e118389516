"""Documents of plain data: YAML, overrides ``key=value``, and errors that name a key."""
