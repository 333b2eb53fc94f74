"""The inference methods, one file each.

Every module in this folder is imported automatically, so a new file can add a new method.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
