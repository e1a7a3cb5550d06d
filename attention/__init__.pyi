from .contract.backend import Backend as Backend
from .errors import BudgetExceeded as BudgetExceeded
from .errors import InvalidValue as InvalidValue
from .methods import get as get
from .methods import names as names
from .methods.adamas import Adamas as Adamas
from .methods.caote import CAOTE as CAOTE
from .methods.controls.noise import Noise as Noise
from .methods.controls.oracle import Oracle as Oracle
from .methods.controls.random import Random as Random
from .methods.duo import Duo as Duo
from .methods.full import Full as Full
from .methods.gkv import GKV as GKV
from .methods.h2o import H2O as H2O
from .methods.infllm import InfLLM as InfLLM
from .methods.kascade import Kascade as Kascade
from .methods.lazy import Lazy as Lazy
from .methods.lessismore import LessIsMore as LessIsMore
from .methods.quest import Quest as Quest
from .methods.raas import RaaS as RaaS
from .methods.rkv import RKV as RKV
from .methods.sink import Sink as Sink
from .methods.snapkv import SnapKV as SnapKV
from .methods.tova import TOVA as TOVA
from .methods.vase import VaSE as VaSE
from .methods.window import Window as Window
from .patching.cache import AttentionCache as AttentionCache
from .patching.stats import CacheStats as CacheStats
from .patching.stats import RowStats as RowStats

__all__ = [
    "CAOTE",
    "GKV",
    "H2O",
    "RKV",
    "TOVA",
    "Adamas",
    "AttentionCache",
    "Backend",
    "BudgetExceeded",
    "CacheStats",
    "Duo",
    "Full",
    "InfLLM",
    "InvalidValue",
    "Kascade",
    "Lazy",
    "LessIsMore",
    "Noise",
    "Oracle",
    "Quest",
    "RaaS",
    "Random",
    "RowStats",
    "Sink",
    "SnapKV",
    "VaSE",
    "Window",
    "get",
    "names",
]
