"""Games on heads: ablation and replay, coalitions, dividends, indices and searches."""
