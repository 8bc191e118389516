"""Random calls of the library, compared with enumeration in float64."""
