"""Scripts that reproduce papers: not installed, and nothing in diabat imports them."""
