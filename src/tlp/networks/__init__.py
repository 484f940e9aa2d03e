"""Networks: built-in ones, exported files, and the tasks to tune in them.

The modules here import torch, TVM and the model libraries only inside functions, so that the
command line can list networks without loading any of them.
"""
