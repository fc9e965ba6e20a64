"""Adapter for any transformers causal LM whose checkpoint keys map one to one to parameters.

Llama and its family, dense Qwen and GPT-2 do; models whose keys are fused or split on loading do not and are refused by
naming the first such key. Weights, computed buffers, static KV cache and replay baseline each lie in a planned range;
nothing else stays alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import AutoModelForCausalLM, StaticCache

from adapters import transformers_model as lm
from adapters.causal_lm_plan import (
    BUFFERS,
    CACHE,
    EXECUTION,
    RING,
    STAGED,
    UNITS,
    WEIGHTS,
    check_dtype,
    draft,
    layouts_of,
    read_options,
    representation_of,
)
from ledger.errors import CheckpointError, RealizationFailed, TallyError
from ledger.plan import Materialization, Plan
from realizer.adapter import (
    Claim,
    Draft,
    DraftRequest,
    Layout,
    PlanHandle,
    ReferenceFixture,
    StepOutput,
    TensorPlace,
    tensors_of,
)
from realizer.decode import expected_tokens

if TYPE_CHECKING:
    from realizer.checkpoint import Checkpoint
    from realizer.loader import Loader
    from realizer.memory import MemoryRange


class CausalLM:
    """One causal LM being realised: the model on the meta device first, then its ranges one after another."""

    name = "causal_lm"
    version = "1"

    def __init__(self, plan: PlanHandle, checkpoint: Checkpoint) -> None:
        document = plan.plan.document
        options = read_options(document.adapter.options if document.adapter else {})
        self._checkpoint = checkpoint
        self._handle = plan
        self._length = options["max_cache_length"]
        self._model = lm.build(checkpoint, options.get("attention"))
        check_dtype(options, self._model.dtype)
        unit = plan.plan.units.get(WEIGHTS)
        chosen = unit.selection if unit else None
        without = {key for key in checkpoint.tensors if chosen is not None and not chosen.matches(key)}
        self._bindings = lm.map_keys(self._model, checkpoint, without)
        self._cache = lm.meta_cache(self._model, self._length)
        self._layouts = layouts_of(self._model, self._bindings, self._cache)
        self._staged: tuple[str, MemoryRange, list[torch.Tensor]] | None = None
        self._baseline: dict[str, torch.Tensor] = {}
        self._counters: list[tuple[Any, str, int]] = []

    @property
    def _plan(self) -> Plan:
        """Through the handle, so that a look during decode would be counted."""
        return self._handle.plan

    # --- before anything is allocated -----------------------------------------------------------------------------

    @classmethod
    def recognises(cls, plan: Plan) -> bool:
        """Never: a plan for this adapter names it."""
        return False

    @classmethod
    def unsupported(cls, checkpoint: Checkpoint) -> str | None:
        """Why this checkpoint cannot be realised, or None."""
        try:
            model = lm.build(checkpoint)
            lm.map_keys(model, checkpoint)
            lm.check_plain(model)
            lm.computed_buffers(model)
            lm.meta_cache(model, 1)
        except (lm.Unmapped, CheckpointError) as error:
            return error.message
        return None

    @classmethod
    def draft(cls, checkpoint: Checkpoint, request: DraftRequest) -> Draft:
        """Units, materializations and execution with exact bytes. Options: see `read_options`; `staging` full or streamed."""
        if (why := cls.unsupported(checkpoint)) is not None:
            raise CheckpointError(why, "another adapter may support this model")
        model = lm.build(checkpoint, read_options(request.options).get("attention"))
        return draft(model, checkpoint, request)

    @classmethod
    def tokens(cls, checkpoint: Checkpoint, prompt: str) -> list[int]:
        """The prompt's token ids by the checkpoint's own tokenizer."""
        ids = list(lm.open_tokenizer(checkpoint)(prompt)["input_ids"])
        if not ids:
            raise TallyError("the prompt has no tokens", "give a longer prompt, or token ids with --tokens")
        return [int(token) for token in ids]

    @classmethod
    def reference(
        cls, plan: Plan, checkpoint: Checkpoint, prompt: str | None, tokens: Sequence[int]
    ) -> ReferenceFixture:
        """Run the model as `from_pretrained` gives it, greedily, with the plan's cache length, dtype and attention."""
        options = read_options(plan.document.adapter.options if plan.document.adapter else {})
        fed = list(tokens) if prompt is None else cls.tokens(checkpoint, prompt)
        config = lm.read_config(checkpoint)
        _check_tokens(fed, config.get_text_config().vocab_size, options)
        dtype = lm.checkpoint_dtype(checkpoint, config)
        check_dtype(options, dtype)
        transformers.utils.logging.disable_progress_bar()
        model = AutoModelForCausalLM.from_pretrained(
            checkpoint.directory,
            dtype=dtype,
            attn_implementation=options.get("attention"),
            local_files_only=True,
            trust_remote_code=False,
        )
        device = _device_of(plan)
        model.to(device).eval().requires_grad_(False)
        lm.align(model)
        cache = StaticCache(config=model.config, max_cache_len=options["max_cache_length"])
        prompt_tokens = torch.tensor(fed, dtype=torch.int64)
        embedded, logits = lm.prefill(model, cache, prompt_tokens)
        chosen, inputs, outputs = [int(logits[-1].argmax())], [], []
        for _ in range(options["decode_steps"]):
            step_input, step_output = lm.prefill(model, cache, torch.tensor(chosen[-1:], dtype=torch.int64))
            inputs.append(step_input)
            outputs.append(step_output)
            chosen.append(int(step_output[-1].argmax()))
        tensors = {
            "prefill.input": embedded,
            "prefill.output": logits,
            "decode.input": torch.cat(inputs),
            "decode.output": torch.cat(outputs),
            "prompt.tokens": prompt_tokens,
            "decode.tokens": torch.tensor(chosen[:-1], dtype=torch.int64),
        }
        provenance = {
            "made_by": f"from_pretrained of {type(model).__name__}, adapter {cls.name} {cls.version}",
            "cache_class": lm.CACHE_CLASS,
            "cache_length": str(options["max_cache_length"]),
            "dtype": lm.NAMES[dtype],
            "attention": lm.attention_of(model),
            "device": str(device),
            "alignment": str(lm.ALLOCATOR_ALIGNMENT),
            "threads": str(torch.get_num_threads()),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "config_digest": checkpoint.config_digest,
            "headers_digest": checkpoint.headers_digest,
            **expected_tokens(chosen[:1], chosen[1:]),
        }
        return ReferenceFixture({name: value.cpu().contiguous() for name, value in tensors.items()}, provenance)

    def violations(self) -> list[tuple[str, str]]:
        """Everything in the plan that cannot be carried out with this model."""
        found: list[tuple[str, str]] = []
        seen: dict[tuple[str, bool], str] = {}
        for planned in self._plan.document.materializations:
            unit, staging = planned.logical_state_id, planned.role == "staging"
            if unit not in UNITS or (staging and unit != WEIGHTS):
                found.append((planned.id, f"{self.name} has no {planned.role} of state {unit!r}"))
                continue
            if (unit, staging) in seen:
                found.append((planned.id, f"{seen[unit, staging]} is planned for the same; {self.name} keeps one"))
            seen[unit, staging] = planned.id
            if planned.representation != (expected := representation_of(planned)):
                found.append((planned.id, f"{self.name} makes {expected!r} of it, not {planned.representation!r}"))
            resource = self._plan.memory_resources.get(planned.memory_resource_id)
            if staging and resource is not None and resource.kind == "accelerator-vram":
                found.append((planned.id, "staging lies in host memory, where files are read to"))
            if staging and (WEIGHTS, False) in seen:
                found.append(
                    (planned.id, f"staging has to come before {seen[WEIGHTS, False]}, which is filled from it")
                )
        for unit in UNITS:
            if unit == BUFFERS and not self._layouts[BUFFERS].places:
                continue
            if (unit, False) not in seen:
                found.append((unit, f"no materialization where {unit!r} stays; {self.name} needs one"))
        for execution in self._plan.document.execution:
            if execution.id != EXECUTION:
                found.append((execution.id, f"{self.name} carries out {EXECUTION!r} alone"))
        return found

    def layout(self, materialization_id: str) -> Layout:
        """How that materialization lies in its range."""
        planned = self._planned(materialization_id)
        if planned.role != "staging":
            return self._layouts[planned.logical_state_id]
        if planned.streamed_bytes is not None:
            return Layout(RING, (TensorPlace("ring", "U8", (planned.expected_bytes,), 0),))
        return Layout(STAGED, self._layouts[WEIGHTS].places)

    def _planned(self, materialization_id: str) -> Materialization:
        planned = self._plan.materializations.get(materialization_id)
        if planned is None or planned.logical_state_id not in UNITS:
            raise TallyError(f"adapter {self.name} knows no materialization {materialization_id!r}")
        return planned

    def warm_up(self, device: str) -> None:
        """On an accelerator, run one block of this model's widths on zeros and drop it again.

        Called before the memory baseline: kernels, heuristics and library workspaces are loaded at their first use, by
        shape and dtype, and would otherwise count as memory that nobody explains.
        """
        if device == "cpu":
            return
        lm.exercise(self._model, self._length, torch.device(device))

    # --- carrying out ---------------------------------------------------------------------------------------------

    def realize(self, materialization_id: str, memory: MemoryRange, loader: Loader) -> Claim:
        """Fill the range, and bind the model to it where it is to stay."""
        planned = self._planned(materialization_id)
        layout = self.layout(materialization_id)
        streamed: int | None = None
        if planned.role == "staging":
            if planned.streamed_bytes is None:
                loader.read(layout, memory)
            self._staged = (materialization_id, memory, list(tensors_of(layout, memory).values()))
        elif planned.logical_state_id == WEIGHTS:
            streamed = self._load_weights(layout, memory, loader)
            lm.bind(self._model, self._bindings, tensors_of(layout, memory))
        elif planned.logical_state_id == BUFFERS:
            values = lm.computed_buffers(self._model)
            for name, tensor in tensors_of(layout, memory).items():
                lm.set_buffer(self._model, name, tensor.copy_(values[name]))
        elif planned.logical_state_id == CACHE:
            lm.place_cache(self._cache, tensors_of(layout, memory), memory.device)
        else:
            self._baseline = tensors_of(layout, memory)
            for tensor in self._baseline.values():
                tensor.zero_()
        return Claim(layout.representation, layout.bytes, len(layout.places), streamed_bytes=streamed)

    def _load_weights(self, layout: Layout, memory: MemoryRange, loader: Loader) -> int | None:
        """From the staging copy, through the ring, or straight from the files; the bytes that passed a ring."""
        if self._staged is None:
            loader.read(layout, memory)
            return None
        staging_id, staging, _ = self._staged
        if self._plan.materializations[staging_id].streamed_bytes is not None:
            return loader.stream(layout, staging, memory)
        loader.copy(layout, staging, memory)
        return None

    def decode_modes(self) -> tuple[str, ...]:
        """Eager alone."""
        return ("eager",)

    def release(self, materialization_id: str) -> None:
        """Drop the tensors over that staging range."""
        if self._staged is not None and self._staged[0] == materialization_id:
            self._staged = None

    def activate(self, execution_id: str) -> torch.device:
        """The device of the parameters, all of which have memory by now."""
        lm.require_bound(self._model)
        devices = {parameter.device for parameter in self._model.parameters()}
        if len(devices) != 1:
            raise RealizationFailed(f"parameters lie on several devices: {sorted(map(str, devices))}")
        return devices.pop()

    def prefill(self, fixture: ReferenceFixture) -> StepOutput:
        """Run the prompt from the empty cache; the token is the likeliest to follow."""
        tokens = fixture.tensors["prompt.tokens"]
        self._check_room(len(tokens) + len(fixture.tensors["decode.tokens"]))
        self._cache.reset()
        embedded, logits = lm.prefill(self._model, self._cache, tokens)
        return StepOutput(embedded, logits, (int(logits[-1].argmax()),))

    def save_baseline(self) -> None:
        """Copy the cache into the replay baseline's range."""
        for name, layer, attribute in lm.cache_slots(self._cache):
            self._baseline[name].copy_(getattr(layer, attribute))
        self._counters = lm.cache_counters(self._cache)

    def restore_baseline(self) -> None:
        """Copy the replay baseline back into the cache."""
        for name, layer, attribute in lm.cache_slots(self._cache):
            getattr(layer, attribute).copy_(self._baseline[name])
        for layer, attribute, value in self._counters:
            setattr(layer, attribute, value)

    def decode(self, fixture: ReferenceFixture, mode: str = "eager") -> StepOutput:
        """Feed the fixture's tokens one at a time; the tokens given back are the likeliest after each."""
        embedded, logits = lm.decode(self._model, self._cache, fixture.tensors["decode.tokens"])
        return StepOutput(embedded, logits, tuple(logits.argmax(-1).tolist()))

    @property
    def model(self) -> Any:
        """The live transformers model, its parameters in the planned ranges."""
        return self._model

    def answer(self, prompt: str, most_tokens: int = 16) -> str:
        """What the live model says after the prompt, greedily, on its own planned cache; at most `most_tokens` tokens."""
        tokenizer = lm.open_tokenizer(self._checkpoint)
        tokens = self.tokens(self._checkpoint, prompt)
        self._check_room(len(tokens) + most_tokens)
        stop = frozenset({tokenizer.eos_token_id} - {None})
        chosen = lm.greedy(self._model, self._cache, tokens, most_tokens, stop)
        return str(tokenizer.decode(chosen, skip_special_tokens=True))

    def _check_room(self, tokens: int) -> None:
        if tokens > self._length:
            raise RealizationFailed(
                f"{tokens} tokens do not fit the cache of {self._length}", "draft with a larger max_cache_length"
            )


def _check_tokens(tokens: Sequence[int], vocabulary: int, options: Mapping[str, Any]) -> None:
    if not tokens:
        raise TallyError("there is no prompt", "give --prompt TEXT or --tokens IDS")
    if odd := [token for token in tokens if not 0 <= token < vocabulary]:
        raise TallyError(f"token {odd[0]} is outside the vocabulary of {vocabulary}")
    if len(tokens) + options["decode_steps"] > options["max_cache_length"]:
        raise TallyError(
            f"{len(tokens)} prompt tokens and {options['decode_steps']} steps do not fit the cache of "
            f"{options['max_cache_length']}",
            "give a shorter prompt, or draft with a larger max_cache_length",
        )


def _device_of(plan: Plan) -> torch.device:
    """The torch device of the plan's Compute Unit. Raises TallyError when this machine has no such GPU."""
    units = [plan.compute_units.get(execution.compute_unit_id) for execution in plan.document.execution]
    wanted = next((unit.device_uuid for unit in units if unit is not None and unit.device_uuid), None)
    if wanted is None:
        return torch.device("cpu")
    for index in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(index).uuid) == wanted.removeprefix("GPU-"):
            return torch.device("cuda", index)
    raise TallyError(f"this machine has no GPU {wanted}", "draft the plan on the machine that is to run it")
