from .chunks import Chunk as Chunk
from .chunks import chunks as chunks
from .classifier import Classifier as Classifier
from .embedders import Embedder as Embedder
from .embedders import SentenceModel as SentenceModel
from .embedders import TextMatch as TextMatch
from .evaluation import evaluate as evaluate
from .features import chunk_states as chunk_states
from .labels import Labeller as Labeller
from .streaks import Streaks as Streaks
from .training import Training as Training

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
