"""A transformers causal LM without its weights: keys mapped to parameters, buffers and cache known, steps run on it.

The planned model and the unplanned reference run through the same `prefill` and `decode`, with the same cache class and
length, dtype and attention, so that only how the weights came into memory differs.
"""

from __future__ import annotations

import copy
import gc
import inspect
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, StaticCache
from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer

from ledger.errors import CheckpointError, RealizationFailed, TallyError
from realizer.checkpoint import Checkpoint, TensorEntry

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""safetensors dtype name -> torch dtype, for the types that parameters of these models have."""

NAMES = {dtype: name for name, dtype in DTYPES.items()}
FLOATS = ("F64", "F32", "F16", "BF16")
LAYER_CLASSES = (StaticLayer, StaticSlidingWindowLayer)
LAYER_COUNTERS = ("cumulative_length_int",)
"""Plain integers that cache layers count in besides their tensors."""

ALLOCATOR_ALIGNMENT = 64
"""Bytes that torch's own storages on a CPU begin at multiples of, and the least of those on a GPU."""

CACHE_CLASS = StaticCache.__name__
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model", "tekken.json", "vocab.txt")
"""Where a tokenizer's vocabulary may lie."""


class Unmapped(TallyError):
    """A checkpoint key without a parameter of equal shape and dtype, or a parameter without a key."""


@dataclass(frozen=True)
class Binding:
    """One checkpoint tensor and every name in the model that is to be it; more than one name is a tie."""

    entry: TensorEntry
    names: tuple[str, ...]


def read_config(checkpoint: Checkpoint) -> Any:
    """The transformers configuration. Raises CheckpointError for a model type that this transformers does not know."""
    try:
        return AutoConfig.from_pretrained(checkpoint.directory, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, TypeError, OSError) as error:
        kind = checkpoint.config.get("model_type")
        raise CheckpointError(
            f"transformers {transformers.__version__} cannot read the configuration of model type {kind!r}: "
            f"{_first_line(error)}",
            "a newer transformers may know it",
        ) from error


def checkpoint_dtype(checkpoint: Checkpoint, config: Any) -> torch.dtype:
    """The floating dtype that the tensors have; where they differ, the configuration's, else the first tensor's."""
    found = [entry.dtype for entry in checkpoint.tensors.values() if entry.dtype in FLOATS]
    if not found:
        raise CheckpointError("the checkpoint has no floating-point tensor", "is it quantised? this adapter reads none")
    stated = NAMES.get(getattr(config, "dtype", None), found[0])
    return DTYPES[stated if stated in found else found[0]]


def build(checkpoint: Checkpoint, attention: str | None = None) -> Any:
    """The model on the meta device: every shape and dtype, no memory. Attention null: what the model prefers.

    Raises CheckpointError when transformers has no causal LM for the configuration.
    """
    config = read_config(checkpoint)
    dtype = checkpoint_dtype(checkpoint, config)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=attention, trust_remote_code=False
            )
    except (ValueError, KeyError, ImportError) as error:
        raise CheckpointError(
            f"transformers {transformers.__version__} builds no causal LM from this configuration: {_first_line(error)}"
        ) from error
    model.eval().requires_grad_(False)
    return model


def attention_of(model: Any) -> str:
    """The attention implementation in effect."""
    return str(model.config._attn_implementation)


def map_keys(model: Any, checkpoint: Checkpoint, without: Container[str] = ()) -> list[Binding]:
    """Each checkpoint tensor with the parameters and persistent buffers that it becomes, in the files' order.

    Keys in `without` are passed over. A key names a parameter as it is or behind the base model's prefix; keys that the
    model class says it ignores are left out; of tied names one key suffices. Raises Unmapped naming the first key that
    has no parameter of equal shape and dtype, else the first parameter without a key.
    """
    slots = model.state_dict(keep_vars=True)
    names_by_tensor: dict[int, list[str]] = {}
    for name, tensor in slots.items():
        names_by_tensor.setdefault(id(tensor), []).append(name)
    ignored = _ignored(model)
    kind = type(model).__name__
    owner: dict[str, TensorEntry] = {}
    for key, entry in checkpoint.tensors.items():
        if key in without:
            continue
        name = _slot_name(key, slots, model.base_model_prefix)
        if name is None:
            if ignored is not None and ignored.search(key):
                continue
            raise Unmapped(f"checkpoint tensor {key!r} maps to no parameter of {kind}")
        if name in owner:
            raise Unmapped(f"checkpoint tensors {owner[name].key!r} and {key!r} both map to {name!r} of {kind}")
        slot = slots[name]
        if tuple(slot.shape) != entry.shape or NAMES.get(slot.dtype) != entry.dtype:
            raise Unmapped(
                f"checkpoint tensor {key!r} is {entry.dtype} {list(entry.shape)}, but parameter {name!r} of {kind} is "
                f"{NAMES.get(slot.dtype, slot.dtype)} {list(slot.shape)}"
            )
        owner[name] = entry
    bindings = []
    for names in names_by_tensor.values():
        stored = [name for name in names if name in owner]
        if not stored:
            raise Unmapped(f"parameter {names[0]!r} of {kind} has no tensor in the checkpoint")
        if len(stored) == 1:
            bindings.append(Binding(owner[stored[0]], (stored[0], *(name for name in names if name != stored[0]))))
        else:  # a tie whose two ends are both on disk: each end is what the checkpoint has for it
            bindings += [Binding(owner[name], (name,)) for name in stored]
    order = {key: at for at, key in enumerate(checkpoint.tensors)}
    return sorted(bindings, key=lambda binding: order[binding.entry.key])


def ignored_keys(model: Any, checkpoint: Checkpoint) -> list[str]:
    """Keys of the checkpoint that map to nothing and that the model class says it ignores."""
    slots = model.state_dict(keep_vars=True)
    return [key for key in checkpoint.tensors if _slot_name(key, slots, model.base_model_prefix) is None]


def _slot_name(key: str, slots: dict[str, Any], prefix: str) -> str | None:
    for name in (key, f"{prefix}.{key}", key.removeprefix(f"{prefix}.")):
        if name in slots:
            return name
    return None


def _ignored(model: Any) -> re.Pattern[str] | None:
    """Keys that from_pretrained drops without a word: the class's own list, and buffers that older versions saved."""
    patterns = sorted(model._keys_to_ignore_on_load_unexpected or ())
    if any(name.endswith("rotary_emb.inv_freq") for name, _ in model.named_buffers()):
        patterns.append(r"rotary_emb\.inv_freq$")
    return re.compile("|".join(f"({pattern})" for pattern in patterns)) if patterns else None


def check_plain(model: Any) -> None:
    """Raises Unmapped for a model that keeps tensors which are neither parameters nor buffers: no range would hold them."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                raise Unmapped(
                    f"{type(model).__name__} keeps a tensor {path}.{name} that is neither parameter nor buffer"
                )


WARM_UP_TOKENS = (16, 5)
"""Prompt lengths run before the baseline: matrix libraries choose kernels by the number of rows."""


def exercise(model: Any, length: int, device: torch.device) -> None:
    """Prefill and decode with one zeroed block of the model's widths on `device`, then free what was allocated for it."""
    config = copy.deepcopy(model.config)
    config.get_text_config().num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1]
    with torch.device("meta"):
        block = AutoModelForCausalLM.from_config(
            config, dtype=model.dtype, attn_implementation=attention_of(model), trust_remote_code=False
        )
    buffers = computed_buffers(block)
    block = block.to_empty(device=device).eval()
    for tensor in block.state_dict(keep_vars=True).values():
        tensor.data.zero_()
    for name, value in buffers.items():
        set_buffer(block, name, value.to(device))
    cache = meta_cache(block, length)
    slots = {
        name: torch.zeros(getattr(layer, leaf).shape, dtype=getattr(layer, leaf).dtype, device=device)
        for name, layer, leaf in cache_slots(cache)
    }
    place_cache(cache, slots, device)
    for count in WARM_UP_TOKENS:
        cache.reset()
        prefill(block, cache, torch.zeros(min(count, length - 2), dtype=torch.int64))
        decode(block, cache, torch.zeros(2, dtype=torch.int64))
    del block, cache, slots
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


# --- buffers that no checkpoint holds ----------------------------------------------------------------------------


def buffer_names(model: Any) -> list[str]:
    """Names of the buffers that are computed and not stored (rotary inverse frequencies and the like)."""
    stored = set(model.state_dict(keep_vars=True))
    return [name for name, _ in model.named_buffers(remove_duplicate=False) if name not in stored]


def computed_buffers(model: Any) -> dict[str, torch.Tensor]:
    """Their values, as the model's own initialisation makes them, on the CPU.

    Raises Unmapped for a buffer that it leaves as it was: nobody would know its value.
    """
    results = [_initialised(model, fill) for fill in (0x00, 0xFF)]
    for name, first in results[0].items():
        if not same_bits(first, results[1][name]):
            raise Unmapped(f"buffer {name!r} of {type(model).__name__} is neither stored nor computed by the model")
    return results[0]


def _initialised(model: Any, fill: int) -> dict[str, torch.Tensor]:
    """The buffers set by `_init_weights` over memory filled with one byte; the model is as before afterwards."""
    kept: list[tuple[Any, str, torch.Tensor]] = []
    values: dict[str, torch.Tensor] = {}
    for tensor in model.state_dict(keep_vars=True).values():
        tensor._is_hf_initialized = True  # transformers' own mark: leave it alone
    try:
        for name in buffer_names(model):
            module, leaf = _leaf(model, name)
            old = module._buffers[leaf]
            kept.append((module, leaf, old))
            size = old.numel() * old.element_size()
            values[name] = torch.full((size,), fill, dtype=torch.uint8).view(old.dtype).view(old.shape)
            module._buffers[leaf] = values[name]
        with torch.no_grad():
            for module in dict.fromkeys(module for module, _, _ in kept):
                model._init_weights(module)
        return {name: _at(model, name).clone() for name in values}
    finally:
        for module, leaf, old in kept:
            module._buffers[leaf] = old


def _leaf(model: Any, name: str) -> tuple[Any, str]:
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


def _at(model: Any, name: str) -> torch.Tensor:
    module, leaf = _leaf(model, name)
    tensor: torch.Tensor = module._buffers[leaf]
    return tensor


def set_buffer(model: Any, name: str, tensor: torch.Tensor) -> None:
    """Put `tensor` where the computed buffer `name` was."""
    module, leaf = _leaf(model, name)
    module._buffers[leaf] = tensor


def bind(model: Any, bindings: Sequence[Binding], tensors: dict[str, torch.Tensor]) -> None:
    """Make `tensors` (by the bindings' first names) the model's parameters, and every tied name the same object."""
    model.load_state_dict(tensors, assign=True, strict=False)
    for binding in bindings:
        first_module, first_leaf = _leaf(model, binding.names[0])
        for name in binding.names[1:]:
            module, leaf = _leaf(model, name)
            setattr(module, leaf, getattr(first_module, first_leaf))
    model.requires_grad_(False)


def unbound(model: Any) -> Iterator[str]:
    """Names of parameters and buffers that are still without memory."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type == "meta":
            yield name


# --- the cache ----------------------------------------------------------------------------------------------------


def meta_cache(model: Any, length: int) -> Any:
    """A static cache of `length` tokens with its layers' tensors on the meta device, shaped by running the meta model.

    Raises Unmapped for cache layers of a class that is not planned here.
    """
    cache = StaticCache(config=model.config, max_cache_len=length)
    with torch.no_grad(), torch.device("meta"):
        try:
            model(input_ids=torch.zeros((1, 1), dtype=torch.int64), **_cache_arguments(model, cache))
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
            raise Unmapped(f"{type(model).__name__} does not run with a static cache: {_first_line(error)}") from error
    for layer in cache.layers:
        if type(layer) not in LAYER_CLASSES or not layer.is_initialized:
            raise Unmapped(
                f"{type(model).__name__} uses cache layers of class {type(layer).__name__}, not planned here"
            )
    return cache


def cache_slots(cache: Any) -> Iterator[tuple[str, Any, str]]:
    """(name, layer, attribute) of every tensor of the cache: keys and values [1, heads, length, width], and the count
    of tokens held, an int64 scalar."""
    for number, layer in enumerate(cache.layers):
        for attribute in sorted(name for name, value in vars(layer).items() if isinstance(value, torch.Tensor)):
            yield f"layers.{number}.{attribute}", layer, attribute


def place_cache(cache: Any, tensors: dict[str, torch.Tensor], device: torch.device) -> None:
    """Make `tensors` (by slot name) the cache's own, zeroed: an empty cache in that memory."""
    for name, layer, attribute in cache_slots(cache):
        setattr(layer, attribute, tensors[name].zero_())
        layer.device = device
    cache.reset()  # the plain counters too: the meta run has advanced them


def cache_counters(cache: Any) -> list[tuple[Any, str, int]]:
    """The plain integers that layers count in: (layer, attribute, value)."""
    return [
        (layer, attribute, getattr(layer, attribute))
        for layer in cache.layers
        for attribute in LAYER_COUNTERS
        if hasattr(layer, attribute)
    ]


def _cache_arguments(model: Any, cache: Any) -> dict[str, Any]:
    """transformers is renaming `past_key_values` to `cache`."""
    parameters = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in parameters else "past_key_values": cache, "use_cache": True}


# --- steps --------------------------------------------------------------------------------------------------------


def align(model: torch.nn.Module) -> None:
    """Give parameters and buffers that lie at odd addresses storages of their own, as the allocator aligns them.

    Weights mapped from a safetensors file lie wherever its header ends, and matrix libraries pick kernels, and with them
    the order of additions, by the alignment of their operands: the same model then gives other bits. MKL does so for
    float32 vectors at addresses that are no multiple of 16 on processors without AVX-512.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.data_ptr() % ALLOCATOR_ALIGNMENT:
            tensor.data = tensor.data.clone()


def prefill(model: Any, cache: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Run int64 tokens [n] from what the cache holds: their embeddings [n, hidden] and the logits [n, vocabulary]."""
    rows = tokens.to(model.device).unsqueeze(0)
    with torch.no_grad():
        embedded = model.get_input_embeddings()(rows)[0]
        logits = model(input_ids=rows, **_cache_arguments(model, cache)).logits[0]
    return embedded, logits


def decode(model: Any, cache: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Feed int64 tokens [k] one at a time: their embeddings [k, hidden] and each step's logits [k, vocabulary]."""
    steps = [prefill(model, cache, token) for token in tokens.split(1)]
    return torch.cat([embedded for embedded, _ in steps]), torch.cat([logits for _, logits in steps])


def greedy(model: Any, cache: Any, tokens: Sequence[int], count: int, stop: frozenset[int] = frozenset()) -> list[int]:
    """The `count` tokens that follow by taking the likeliest each time, from an empty cache; a `stop` token ends it."""
    cache.reset()
    _, logits = prefill(model, cache, torch.tensor(tokens, dtype=torch.int64))
    chosen = [int(logits[-1].argmax())]
    while len(chosen) < count and chosen[-1] not in stop:
        _, logits = prefill(model, cache, torch.tensor(chosen[-1:], dtype=torch.int64))
        chosen.append(int(logits[-1].argmax()))
    return chosen


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equal shape, dtype and bytes (NaN payloads and signs of zero included)."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    as_bytes = [tensor.contiguous().flatten().view(torch.uint8) for tensor in (first, second)]
    return bool(torch.equal(*as_bytes))


def require_bound(model: Any) -> None:
    """Raises RealizationFailed naming the first parameter or buffer that has no memory yet."""
    if (name := next(unbound(model), None)) is not None:
        raise RealizationFailed(
            f"{name!r} of {type(model).__name__} has no memory: its materialization was not realised"
        )


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def open_tokenizer(checkpoint: Checkpoint) -> Any:
    """The checkpoint's own tokenizer, from its files alone. Raises CheckpointError where it has none that can be read."""
    where = str(checkpoint.directory)
    hint = "save the model's tokenizer there"
    if not any((checkpoint.directory / name).is_file() for name in TOKENIZER_FILES):
        # transformers makes an empty tokenizer of the config alone, which would encode everything to nothing
        raise CheckpointError(f"there is no tokenizer in {where!r}", hint)
    try:
        return AutoTokenizer.from_pretrained(where, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, TypeError, OSError, ImportError) as error:
        raise CheckpointError(f"the tokenizer in {where!r} cannot be read: {error}", hint) from error
