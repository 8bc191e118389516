"""Random calls of the library, held against enumeration in float64."""
