"""Word Salad Chopper: from a hidden state whether a model repeats itself."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
