"""Work whose disk fails, or that is killed: nothing saved may be lost."""
