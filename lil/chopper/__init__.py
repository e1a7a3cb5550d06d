"""Word Salad Chopper: telling from a hidden state that a model repeats itself.

`chunks.py` says where a chunk of text ends, `labels.py` which chunks of a finished trace are word
salad, by an embedder of `embedders.py`; `training.py` makes a `Classifier` of that, which
`evaluation.py` measures; `streaks.py` decides from its numbers where to chop. The detector that
puts them to work is `lil.detectors.chopper`.
"""

from attention.lazy import lazy

_HOME = {
    "Chunk": "chunks",
    "Classifier": "classifier",
    "Embedder": "embedders",
    "Labeller": "labels",
    "SentenceModel": "embedders",
    "Streaks": "streaks",
    "TextMatch": "embedders",
    "Training": "training",
    "chunk_states": "features",
    "chunks": "chunks",
    "evaluate": "evaluation",
}

__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy(__name__, _HOME)
