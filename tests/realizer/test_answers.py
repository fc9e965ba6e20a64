"""An adapter that does not keep to its protocol: one clear error, and a run that is closed as failed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from adapters.causal_lm import CausalLM
from ledger.errors import TallyError
from ledger.plan import Authority
from realizer import answers
from realizer.adapter import Adapter, Claim, Draft, Layout, ReferenceFixture, StepOutput, TensorPlace, pack
from realizer.answers import AdapterFault
from realizer.checkpoint import open_checkpoint
from tests.builders.realizations import Prepared, carry_out, prepare


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(tmp_path_factory.mktemp("answers"))


def answering(method: str, answer: Any) -> type[CausalLM]:
    """causal_lm, but that one method: `answer` is what it gives back, or makes of what it should have given."""

    def wrong(self: CausalLM, *arguments: Any, **named: Any) -> Any:
        right = getattr(super(made, self), method)(*arguments, **named)
        return answer(right) if callable(answer) else answer

    made: type[CausalLM] = type("Wrong", (CausalLM,), {method: wrong})
    return made


WRONG: dict[str, tuple[Any, str]] = {
    "violations": (None, "a list of (subject id, message)"),
    "layout": (lambda made: replace(made, places=list(made.places)), "a tuple of places"),
    "realize": (lambda made: replace(made, bytes=1.0), "a whole number as `bytes`"),
    "activate": ("cpu", "the torch.device"),
    "decode_modes": ("eager", "a tuple of at least one of 'eager', 'cuda-graph'"),
    "prefill": (None, "a StepOutput"),
    "decode": (lambda made: replace(made, output=made.output.tolist()), "a tensor as `output`"),
}


@pytest.mark.parametrize("method", sorted(WRONG))
def test_an_answer_of_another_type_names_adapter_method_and_what_was_expected(prepared: Prepared, method: str) -> None:
    answer, expected = WRONG[method]
    carried = carry_out(prepared, adapter=answering(method, answer))
    assert isinstance(carried.error, AdapterFault), carried.error
    assert "'causal_lm'" in carried.error.message
    assert f"`{method}`" in carried.error.message
    assert expected in carried.error.message
    assert "\n" not in str(carried.error)
    assert (carried.types[-1], carried.state.outcome) == ("run.closed", "failed")
    assert "run.failed" in carried.codes
    assert ("materialization.failed" in carried.types) is (method == "realize")


CLAIM = Claim("checkpoint-native-host", 1, 1)
AUTHORITY = Authority(lineage="a", logical_state_id="b", materialization_id="c")
STEP = StepOutput(torch.zeros(1), torch.zeros(1), (1,))


@pytest.mark.parametrize(
    ("held", "wrong"),
    [
        (answers.claim, replace(CLAIM, tensors=None)),
        (answers.claim, replace(CLAIM, unplanned_bytes=-1)),
        (answers.claim, replace(CLAIM, bytes=True)),
        (answers.claim, replace(CLAIM, representation=None)),
        (answers.claim, None),
        (lambda adapter, made: answers.step(adapter, "decode", made), replace(STEP, tokens=STEP.output)),
        (lambda adapter, made: answers.step(adapter, "decode", made), replace(STEP, input=None)),
        (lambda adapter, made: answers.held_layout(adapter, "layout", made), None),
        (
            lambda adapter, made: answers.held_layout(adapter, "layout", made),
            Layout("r", (TensorPlace("w", "bfloat16", (1,), 0),)),
        ),
        (
            lambda adapter, made: answers.held_layout(adapter, "layout", made),
            Layout("r", (TensorPlace("w", "BF16", [1], 0),)),  # type: ignore[arg-type]
        ),
    ],
)
def test_every_part_of_an_answer_is_held(held: Any, wrong: Any) -> None:
    with pytest.raises(AdapterFault, match="gave back"):
        held(CausalLM, wrong)
    assert answers.claim(CausalLM, CLAIM) is CLAIM  # type: ignore[arg-type]
    assert answers.step(CausalLM, "decode", STEP) is STEP  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "wrong"), [("decode_modes", ()), ("decode_modes", ("compiled",)), ("violations", ["no"])]
)
def test_lists_are_held_to_what_is_in_them(method: str, wrong: Any) -> None:
    adapter: Any = SimpleNamespace(name="wrong", **{method: lambda: wrong})
    with pytest.raises(AdapterFault, match=f"`{method}` gave back"):
        getattr(answers, method)(adapter)


def test_a_layout_that_turns_wrong_during_the_run_fails_its_materialization(prepared: Prepared) -> None:
    class Turning(CausalLM):
        asked = 0

        def layout(self, materialization_id: str) -> Layout:
            Turning.asked += 1
            made = super().layout(materialization_id)
            return made if Turning.asked <= len(prepared.plan.materializations) else None  # type: ignore[return-value]

    carried = carry_out(prepared, adapter=Turning)
    assert isinstance(carried.error, AdapterFault)
    assert carried.types[-3:] == ["materialization.started", "materialization.failed", "run.closed"]


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("violations", GeneratorExit),
        ("realize", GeneratorExit),
        ("realize", asyncio.CancelledError),
        ("release", SystemExit),
        ("decode", GeneratorExit),
    ],
)
def test_whatever_an_adapter_raises_the_run_is_closed_as_failed(
    prepared: Prepared, method: str, error: type[BaseException]
) -> None:
    def give_up(_: Any) -> Any:
        raise error("late")

    carried = carry_out(prepared, adapter=answering(method, give_up))
    assert isinstance(carried.error, AdapterFault)
    assert error.__name__ in carried.error.message
    assert "'causal_lm'" in carried.error.message
    assert (carried.types[-1], carried.state.outcome) == ("run.closed", "failed")
    assert ("materialization.failed" in carried.types) is (method == "realize")


def test_a_class_that_lacks_a_member_is_refused_by_naming_it(prepared: Prepared) -> None:
    class Half(Adapter):
        name = "half"
        version = "1"

    lacking = "draft, reference, violations, layout, realize, release"
    with pytest.raises(AdapterFault, match=f"'half' lacks unsupported, {lacking}"):
        answers.require_members(Half)
    carried = carry_out(prepared, adapter=Half)
    assert isinstance(carried.error, AdapterFault)
    assert carried.state.outcome == "failed"
    with pytest.raises(TypeError, match="abstract"):
        Half(None, None)  # type: ignore[arg-type, abstract]
    numbered = type("Numbered", (CausalLM,), {"version": 1})
    with pytest.raises(AdapterFault, match="adapter 'causal_lm': `version` is int 1; expected text"):
        answers.require_members(numbered)
    carried = carry_out(prepared, adapter=numbered)
    assert isinstance(carried.error, AdapterFault), "before the run's first event, which would record it"
    assert carried.events == []
    with pytest.raises(AdapterFault, match="Nameless lacks name: text, on the class"):
        answers.require_names(type("Nameless", (), {"version": "1"}))  # type: ignore[arg-type]
    answers.require_members(CausalLM)


def test_what_is_asked_before_a_run_is_held_too(prepared: Prepared) -> None:
    checkpoint = open_checkpoint(prepared.checkpoint)

    class Vague(CausalLM):
        name = "vague"

        @classmethod
        def unsupported(cls, checkpoint: Any) -> Any:
            return False

        @classmethod
        def draft(cls, checkpoint: Any, request: Any) -> Any:
            return {}

        @classmethod
        def tokens(cls, checkpoint: Any, prompt: str) -> Any:
            return prompt

        @classmethod
        def reference(cls, *arguments: Any) -> Any:
            return ReferenceFixture({"prefill.input": [1.0]}, {})  # type: ignore[dict-item]

    with pytest.raises(AdapterFault, match="`unsupported` gave back bool False; expected the reason as text, or None"):
        answers.unsupported(Vague, checkpoint)
    with pytest.raises(AdapterFault, match="`answer` gave back None; expected the text"):
        answers.answer(SimpleNamespace(name="mute", answer=lambda prompt, most_tokens: None), "x", 4)
    with pytest.raises(AdapterFault, match="`draft` gave back dict"):
        answers.draft(Vague, checkpoint, None)  # type: ignore[arg-type]
    with pytest.raises(AdapterFault, match="`tokens` gave back str 'ab'"):
        answers.tokens(Vague, checkpoint, "ab")
    with pytest.raises(AdapterFault, match=r"a tensor as 'prefill\.input'"):
        answers.reference(Vague, prepared.plan, checkpoint, None, [1])
    fixture = ReferenceFixture({"decode.tokens": torch.zeros(2, dtype=torch.int32)}, {})
    vague: Any = SimpleNamespace(name="vague", reference=lambda *_: fixture)
    with pytest.raises(AdapterFault, match=r"torch.int32; expected int64 as dtype of 'decode\.tokens'"):
        answers.reference(vague, prepared.plan, checkpoint, None, [1])


def test_what_an_adapter_raises_before_a_run_names_it_and_the_call() -> None:
    class Raising(CausalLM):
        name = "raising"

        @classmethod
        def draft(cls, checkpoint: Any, request: Any) -> Any:
            raise AttributeError("no such thing")

        @classmethod
        def tokens(cls, checkpoint: Any, prompt: str) -> Any:
            raise TallyError("the adapter's own words")

    with pytest.raises(AdapterFault, match=r"^adapter 'raising': `draft` raised AttributeError: no such thing"):
        answers.draft(Raising, None, None)  # type: ignore[arg-type]
    with pytest.raises(TallyError, match="own words"):
        answers.tokens(Raising, None, "x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("authorities", [AUTHORITY], r"\.\.\.; expected dict.*model_dump\(exclude"),
        ("execution", ({},), "a list as `execution`"),
        ("materializations", [{"id": "m"}], "`persistence` in each of `materializations`"),
        ("logical_state_units", [{"count": STEP.output}], "no JSON in `logical_state_units`"),
        ("options", [], "a dictionary as `options`"),
        ("plan_version", 1, "text as `plan_version`"),
    ],
)
def test_a_draft_that_is_no_part_of_a_plan_says_what_is_expected(name: str, given: Any, said: str) -> None:
    right: dict[str, Any] = {each: [] for each in answers.DRAFT_LISTS} | {"options": {}, "plan_version": "1"}

    class Drafting(CausalLM):
        name = "drafting"

        @classmethod
        def draft(cls, checkpoint: Any, request: Any) -> Any:
            return Draft(**right)

    assert answers.draft(Drafting, None, None) == Draft(**right)  # type: ignore[arg-type]
    right[name] = given
    with pytest.raises(AdapterFault, match=f"adapter 'drafting': `draft` .*{said}"):
        answers.draft(Drafting, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokens", "why"),
    [
        ((7, -1), "entry 1 is -1; ids are not negative"),
        ((STEP.output,), "entry 0 is Tensor"),
        ((True,), "entry 0 is bool"),
    ],
)
def test_tokens_are_whole_numbers_of_python_or_numpy(tokens: Any, why: str) -> None:
    adapter: Any = CausalLM
    made = answers.step(adapter, "decode", replace(STEP, tokens=(np.int64(7), 8)))
    assert made.tokens == (7, 8)
    assert [type(token) for token in made.tokens] == [int, int]
    with pytest.raises(AdapterFault, match=f"`decode` gave back .* in its StepOutput: {why}"):
        answers.step(adapter, "decode", replace(STEP, tokens=tokens))
    with pytest.raises(AdapterFault, match=why):
        answers.tokens(SimpleNamespace(name="x", tokens=lambda checkpoint, prompt: list(tokens)), None, "x")  # type: ignore[arg-type]


def test_places_that_overlap_are_refused_before_anything_is_allocated(prepared: Prepared) -> None:
    def overlapping(made: Layout) -> Layout:
        first, second, *rest = made.places
        return replace(made, places=(first, replace(second, offset=first.offset + first.bytes - 1), *rest))

    carried = carry_out(prepared, adapter=answering("layout", overlapping))
    assert isinstance(carried.error, AdapterFault)
    first, second = CausalLM.name, prepared.plan.document.materializations[0].representation
    assert f"adapter {first!r}: `layout` gave back the layout {second!r} in which" in carried.error.message
    assert ", inside " in carried.error.message
    assert "materialization.started" not in carried.types
    empty = TensorPlace("none", "F32", (0,), 2)
    made = Layout("r", (TensorPlace("a", "F32", (2,), 0), empty, TensorPlace("b", "F32", (1,), 8)))
    assert answers.held_layout(CausalLM, "layout", made) is made, "what takes no bytes overlaps nothing"


def test_a_dtype_of_another_vocabulary_names_those_there_are() -> None:
    with pytest.raises(TallyError, match=r"'w' has dtype 'float32'; expected a safetensors name: .*BF16"):
        pack("r", [("w", "float32", (1,), ())])


@pytest.mark.parametrize("found", [None, {"w": "beef"}, {"w": b"x"}])
def test_digests_of_computed_tensors_have_their_form(found: Any) -> None:
    digests = {"w": "sha256:" + "a" * 64}
    assert answers.derived_digests(SimpleNamespace(name="x"), "m", None) == {}  # type: ignore[arg-type]
    adapter = SimpleNamespace(name="x", derived_digests=lambda materialization_id, loader: digests)
    assert answers.derived_digests(adapter, "m", None) == digests  # type: ignore[arg-type]
    adapter.derived_digests = lambda materialization_id, loader: found
    with pytest.raises(AdapterFault, match="`derived_digests` gave back"):
        answers.derived_digests(adapter, "m", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["__init__", "layout", "release", "decode"])
def test_what_an_adapter_raises_in_a_run_names_it_and_the_call(prepared: Prepared, method: str) -> None:
    def breaks(*_: Any, **__: Any) -> Any:
        raise KeyError("width")

    carried = carry_out(prepared, adapter=type("Breaking", (CausalLM,), {method: breaks}))
    assert isinstance(carried.error, AdapterFault)
    assert carried.error.message == f"adapter 'causal_lm': `{method}` raised KeyError: 'width'"
    assert carried.state.closed is not None
    assert carried.state.closed.body.error_type == "KeyError"


def test_what_derives_from_the_protocol_inherits_what_most_adapters_say(prepared: Prepared) -> None:
    assert Adapter.recognises(prepared.plan) is False
    assert Adapter.decode_modes(None) == ("eager",)  # type: ignore[arg-type]
    with pytest.raises(TallyError, match="no tokenizer"):
        type("Mute", (Adapter,), {"name": "mute"}).tokens(None, "text")  # type: ignore[attr-defined]


def test_the_names_that_the_page_lists_are_there() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "adapters.md").read_text(encoding="utf-8")
    for member in answers.MEMBERS:
        assert f"`{member}" in page, f"docs/adapters.md says nothing of `{member}`"
    for form in (Draft, Layout, Claim, StepOutput, ReferenceFixture):
        assert form.__name__ in page
