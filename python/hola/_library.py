"""libhola through ctypes: the structs and functions of include/hola.h, in its order, and nothing else.

No compiler compares this file with hola.h, so the import does: it asks the library for its version and for the size of
every struct. Whoever changes a struct of hola.h changes it here, and nowhere else in this package.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_bool, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64
from ctypes import c_void_p
from typing import Any

from ._errors import error_of
from ._version import __version__

RECENT = 1024  # HOLA_RECENT


class Config(ctypes.Structure):
    _fields_ = [
        ("model_type", c_int),
        ("hidden_size", c_int64),
        ("num_hidden_layers", c_int64),
        ("intermediate_size", c_int64),
        ("vocab_size", c_int64),
        ("num_heads", c_int64),
        ("num_v_heads", c_int64),
        ("head_dim", c_int64),
        ("head_v_dim", c_int64),
        ("conv_size", c_int64),
        ("max_position_embeddings", c_int64),
        ("bos_token_id", c_int64),
        ("eos_token_id", c_int64),
        ("norm_eps", c_double),
        ("initializer_range", c_double),
        ("hidden_ratio", c_double),
        ("use_gate", c_bool),
        ("tie_word_embeddings", c_bool),
        ("allow_neg_eigval", c_bool),
        ("use_beta", c_bool),
        ("cache_evict", c_int),
        ("cache_norm", c_int),
        ("cache_window", c_int64),
        ("cache_chunk", c_int64),
        ("cache_gate_init", c_double),
        ("cache_tau_init", c_double),
        ("cache_tau_freeze", c_bool),
        ("cache_gate_linear", c_bool),
        ("cache_gate_token", c_bool),
        ("cache_redundancy", c_double),
        ("cache_layer_set", c_bool),
        ("cache_sinks", c_int64),
        ("cache_lte_dim", c_int64),
        ("num_kv_heads", c_int64),
        ("window_size", c_int64),
        ("qkv_bias", c_bool),
        ("qk_norm", c_bool),
        ("rope_theta", c_double),
        ("feature_map", c_int),
        ("elementwise_affine", c_bool),
        ("fuse_norm", c_bool),
        ("clamp_min", c_double),
        ("num_slots", c_int64),
        ("gate_logit_normalizer", c_double),
        ("lower_bound", c_double),
        ("safe_gate", c_bool),
    ]


class Options(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("threads", c_int), ("backend", c_char_p), ("precision", c_int)]


class TensorInfo(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("ndim", c_int),
        ("dim", c_int64 * 3),
        ("count", c_int64),
        ("trained", c_bool),
        ("dtype", c_int),
    ]


class Sampling(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("repeat_penalty", c_double),
        ("repeat_last_n", c_int64),
        ("top_k", c_int64),
        ("top_p", c_double),
        ("min_p", c_double),
        ("temp", c_double),
    ]


class HistoryOpts(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("every", c_int64), ("most", c_int64)]


class GenerateOpts(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("max_tokens", c_int64),
        ("sampling", c_void_p),
        ("stop", c_void_p),
        ("stop_len", c_void_p),
        ("n_stop", c_int64),
        ("history", c_void_p),
        ("ignore_eos", c_bool),
        ("keep_logits", c_bool),
        ("on_token", c_void_p),
        ("ctx", c_void_p),
        ("lookup", c_int64),
        ("source", c_void_p),
        ("n_source", c_int64),
    ]


class TrainOpts(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("max_tokens", c_int64),
        ("beta1", c_double),
        ("beta2", c_double),
        ("eps", c_double),
        ("weight_decay", c_double),
        ("clip", c_double),
        ("recompute", c_bool),
        ("precision", c_int),
    ]


STRUCTS: dict[str, type[ctypes.Structure]] = {
    "hola_config": Config,
    "hola_options": Options,
    "hola_tensor_info": TensorInfo,
    "hola_sampling": Sampling,
    "hola_history_opts": HistoryOpts,
    "hola_generate_opts": GenerateOpts,
    "hola_train_opts": TrainOpts,
}

# Arrays, handles and structs are addresses (p); a handle that is written is a POINTER (o). Status is hola_status.
_p, _o, _n, _s = c_void_p, POINTER(c_void_p), c_int64, c_char_p
_status = c_int
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "hola_config_preset": (_status, (_p, _s, c_int)),
    "hola_config_read": (_status, (_p, _s)),
    "hola_config_check": (_status, (_p,)),
    "hola_config_parameters": (_n, (_p,)),
    "hola_model_type_name": (_s, (c_int,)),
    "hola_evict_name": (_s, (c_int,)),
    "hola_cache_norm_name": (_s, (c_int,)),
    "hola_dtype_name": (_s, (c_int,)),
    "hola_model_new": (_status, (_o, _p, c_uint64, _p)),
    "hola_model_load": (_status, (_o, _s, _p)),
    "hola_model_save": (_status, (_p, _s, c_int)),
    "hola_model_free": (None, (_p,)),
    "hola_model_config": (_p, (_p,)),
    "hola_model_tensor_count": (_n, (_p,)),
    "hola_model_tensor": (_status, (_p, _n, _p)),
    "hola_model_tensor_read": (_status, (_p, _n, _p)),
    "hola_tokenizer_load": (_status, (_o, _s)),
    "hola_tokenizer_free": (None, (_p,)),
    "hola_tokenizer_size": (_n, (_p,)),
    "hola_tokenizer_bos": (c_int32, (_p,)),
    "hola_tokenizer_eos": (c_int32, (_p,)),
    "hola_tokenizer_encode": (_status, (_p, _s, _n, c_int, _o, POINTER(_n))),
    "hola_tokenizer_decode": (_status, (_p, _p, _n, _o, POINTER(_n))),
    "hola_detokenizer_new": (_status, (_o, _p, POINTER(_s), POINTER(_n), _n)),
    "hola_detokenizer_free": (None, (_p,)),
    "hola_detokenizer_begin": (None, (_p, _p, _n)),
    "hola_detokenizer_add": (_status, (_p, c_int32, POINTER(c_bool))),
    "hola_detokenizer_take": (_p, (_p, c_bool, POINTER(_n))),
    "hola_session_new": (_status, (_o, _p)),
    "hola_session_clone": (_status, (_o, _p)),
    "hola_session_free": (None, (_p,)),
    "hola_session_reset": (None, (_p,)),
    "hola_session_position": (_n, (_p,)),
    "hola_session_bytes": (_n, (_p,)),
    "hola_session_feed": (_status, (_p, _p, _n, _p)),
    "hola_session_feed_each": (_status, (_p, _p, _n, _p)),
    "hola_session_score": (_status, (_p, _p, _p, _n, _p)),
    "hola_session_step": (_status, (_p, _n, _p, _p)),
    "hola_session_logits": (POINTER(c_float), (_p,)),
    "hola_session_recent": (_n, (_p, _p, _n)),
    "hola_session_seed": (None, (_p, c_uint64)),
    "hola_session_seed_of": (c_uint64, (_p,)),
    "hola_session_sample": (_status, (_p, _p, POINTER(c_int32))),
    "hola_session_step_sample": (_status, (_p, _n, _p, _p, _p)),
    "hola_session_feed_sample": (_status, (_p, _p, _n, _p, _p)),
    "hola_session_save": (_status, (_p, _s, c_int)),
    "hola_session_load": (_status, (_p, _s)),
    "hola_session_mark": (_status, (_p,)),
    "hola_session_rollback": (_status, (_p, _n)),
    "hola_history_new": (_status, (_o, _p, _p)),
    "hola_history_free": (None, (_p,)),
    "hola_history_feed": (_status, (_p, _p, _n, _p)),
    "hola_history_keep": (_status, (_p,)),
    "hola_history_prompt": (_status, (_p, _p, _n, _p, POINTER(_n))),
    "hola_history_rollback": (_status, (_p, _n)),
    "hola_trainer_new": (_status, (_o, _p, _p)),
    "hola_trainer_free": (None, (_p,)),
    "hola_trainer_accumulate": (_status, (_p, _p, _n, _p, _n, c_double, POINTER(c_double), POINTER(_n))),
    "hola_trainer_evaluate": (_status, (_p, _p, _n, _p, _n, POINTER(c_double), POINTER(_n))),
    "hola_trainer_accumulate_masked": (_status, (_p, _p, _n, _p, _n, _p, c_double, POINTER(c_double), POINTER(_n))),
    "hola_trainer_evaluate_masked": (_status, (_p, _p, _n, _p, _n, _p, POINTER(c_double), POINTER(_n))),
    "hola_trainer_update": (_status, (_p, c_double, POINTER(c_double))),
    "hola_cuda_devices": (c_int, ()),
    "hola_cuda_version": (_s, ()),
    "hola_cuda_arch": (_s, ()),
    "hola_config_parse": (_status, (_p, _s, _n)),
    "hola_session_kept": (_status, (_p, _n, _n, _p, _p, POINTER(_n))),
    "hola_model_score": (_status, (_p, _p, _p, _p, _n, _p, _p)),
}


def _find() -> str:
    named = os.environ.get("HOLA_LIBRARY")
    if named:
        return os.path.abspath(named)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libhola.so")
    if not os.path.exists(path):
        raise ImportError(
            f"{path} is missing: install the package (pip install .), or name a libhola.so in HOLA_LIBRARY"
        )
    return path


def _open(path: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(path)
        library.hola_version.restype = c_char_p
        version = library.hola_version().decode()
    except (OSError, AttributeError) as e:
        raise ImportError(f"{path}: cannot be loaded as libhola: {e}") from None
    if version != __version__:
        raise ImportError(f"{path} is version {version}, the Python package is {__version__}")
    try:
        library.hola_last_error.restype = c_char_p
        library.hola_sizeof.restype = c_size_t
        library.hola_sizeof.argtypes = (c_char_p,)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as e:
        raise ImportError(f"{path}: not the library of this package: {e}") from None
    for name, struct in STRUCTS.items():
        size = library.hola_sizeof(name.encode())
        if size != ctypes.sizeof(struct):
            raise ImportError(f"{path}: {name} has {size} bytes, the Python package has {ctypes.sizeof(struct)}")
    return library


PATH = _find()
C = _open(PATH)
_libc = ctypes.CDLL(None)
_libc.free.argtypes = (c_void_p,)
_libc.free.restype = None


def _names(function: Any) -> tuple[str, ...]:
    """The names of an enum of hola.h, in its order."""
    names: list[str] = []
    while (name := function(len(names)).decode()) != "unknown":
        names.append(name.lower())
    return tuple(names)


DTYPES = _names(C.hola_dtype_name)
MODEL_TYPES = _names(C.hola_model_type_name)
EVICTS = _names(C.hola_evict_name)
CACHE_NORMS = _names(C.hola_cache_norm_name)
FEATURE_MAPS = (None, "relu", "swish", "sigmoid", "sqrelu")  # hola_feature_map, which has no names in hola.h


def check(status: int) -> None:
    """Raises what the status of a call says. Its text belongs to the thread of the call, which is this one."""
    if status:
        raise error_of(status, C.hola_last_error().decode("utf-8", "replace"))


def options(struct: Any, **fields: Any) -> Any:
    """A struct of options; those that begin with their size get it."""
    made = struct(**fields)
    if hasattr(struct, "size"):
        made.size = ctypes.sizeof(struct)
    return made


def created(function: Any, *arguments: Any) -> int:
    """The handle that a constructor of the library writes to its first argument."""
    out = c_void_p()
    check(function(byref(out), *arguments))
    assert out.value is not None
    return out.value


def free(address: int | None) -> None:
    """free() of what the library allocated."""
    _libc.free(address)


def library_path() -> str:
    """The path of the libhola.so in use: the package's own, or the one that HOLA_LIBRARY names."""
    return PATH


def devices() -> list[str]:
    """What ``backend`` may name here, the best first: ``["cuda:0", "cpu"]``."""
    return [f"cuda:{i}" for i in range(C.hola_cuda_devices())] + ["cpu"]


def build_info() -> dict[str, Any]:
    """``{"version": "0.1.0", "cuda": "13.0", "cuda_arch": ["90a"]}``; cuda is None in a build without CUDA."""
    cuda, arch = C.hola_cuda_version(), C.hola_cuda_arch()
    return {
        "version": C.hola_version().decode(),
        "cuda": cuda.decode() if cuda else None,
        "cuda_arch": arch.decode().split() if arch else [],
    }
