"""Speculative sampling with constrained acceptance: Cactus, the rules it is compared with, and what they cost.

The public names stand in ``__init__.pyi``; each is imported when it is first used.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
