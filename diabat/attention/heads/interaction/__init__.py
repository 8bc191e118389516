"""How attention heads interact: couplings, shared information, communities, and what theory says about them."""
