"""Actions on tables: writes and the table services, one package for each; no package imports another.

Each package plans, executes and checks its results. Code that two packages share is in the modules here or in
`tideline_table.coordination`. `restore` runs pending cleans and `recovery` completes restores, so these may import the others.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
