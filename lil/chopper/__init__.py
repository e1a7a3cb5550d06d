"""Word Salad Chopper: telling from a hidden state that a model repeats itself.

`chunks.py` says where a chunk of text ends, and from a classifier's numbers where to chop;
`labels.py` which chunks of a finished trace are word salad; `training.py` makes a `Classifier` of
that and measures it. The detector that puts them to work is `lil.detectors.chopper`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
