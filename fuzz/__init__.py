"""Random cases, damaged files and failing disks, which the library must answer or refuse in one sentence."""
