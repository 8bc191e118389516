"""Work whose disk fails, that is killed, or whose data are not finite: nothing saved may be lost."""
