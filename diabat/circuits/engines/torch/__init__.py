"""The engine with torch operations, for GPUs."""
