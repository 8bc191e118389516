"""The engine of torch operations, for GPUs."""
