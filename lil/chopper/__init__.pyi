from .chunks import Chunk as Chunk
from .chunks import Streaks as Streaks
from .chunks import chunks as chunks
from .classifier import Classifier as Classifier
from .features import chunk_states as chunk_states
from .labels import Embedder as Embedder
from .labels import Labeller as Labeller
from .labels import SentenceModel as SentenceModel
from .labels import TextMatch as TextMatch
from .training import Training as Training
from .training import evaluate as evaluate

__all__ = [
    "Chunk",
    "Classifier",
    "Embedder",
    "Labeller",
    "SentenceModel",
    "Streaks",
    "TextMatch",
    "Training",
    "chunk_states",
    "chunks",
    "evaluate",
]
