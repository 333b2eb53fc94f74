"""The inference methods: each computes a posterior q(z | x) and trains its networks. One file each.

Every module in this folder is imported automatically, so a new file can add a new method.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
