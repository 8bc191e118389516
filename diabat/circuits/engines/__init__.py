"""What runs a Trotter plan: the interface of engines, and one package for each kind of them."""
