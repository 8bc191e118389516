"""A training whose disk fails, that is killed, that meets NaN, or whose clock is set back: nothing saved is lost."""
