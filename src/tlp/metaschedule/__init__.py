"""The TVM border: only this package and :mod:`tlp.networks` hold TVM objects."""
