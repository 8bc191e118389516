"""The wing that trains and measures: configurations, tasks, models, training, studies, runs; only `cli` imports it."""
