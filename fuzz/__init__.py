"""Random cases, damaged files and failing disks: what the library must answer, or refuse in one sentence."""
