"""Finding adapters: by entry point, never by chance, and without one broken package standing in everybody's way."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ledger.errors import NotFound, TallyError
from realizer import adapter as registry
from realizer.adapter import ENTRY_POINT_GROUP, adapter_for, adapter_names, load_adapter
from realizer.answers import AdapterFault
from realizer.checkpoint import open_checkpoint
from realizer.cli.plans import _adapter
from tests.builders.checkpoints import tiny_model


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, ENTRY_POINT_GROUP)


CAUSAL = point("causal_lm", "adapters.causal_lm:CausalLM")


def offer(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    monkeypatch.setattr(registry, "_entry_points", lambda: points)


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> EntryPoint:
    """An adapter whose questions end in an error of its own; it comes first by name."""

    class Breaking:
        name = "a_breaking"

        @classmethod
        def unsupported(cls, checkpoint: Any) -> str | None:
            raise KeyError("width")

    module = ModuleType("a_breaking")
    module.Breaking = Breaking  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_breaking", module)
    return point("a_breaking", "a_breaking:Breaking")


def test_two_packages_that_offer_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, CAUSAL, point("causal_lm", "elsewhere:Impostor"))
    with pytest.raises(
        TallyError, match=r"several .* offer an adapter 'causal_lm': adapters.causal_lm:CausalLM, elsew"
    ):
        load_adapter("causal_lm")
    offer(monkeypatch, CAUSAL, CAUSAL)
    assert load_adapter("causal_lm").name == "causal_lm", "one package found twice is one"
    assert adapter_names() == ["causal_lm"]


def test_a_package_that_breaks_when_imported_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken_adapter.py").write_text("raise ValueError('out of date')\n")
    monkeypatch.syspath_prepend(tmp_path)
    offer(monkeypatch, point("broken", "broken_adapter:Any"))
    with pytest.raises(TallyError, match="'broken' cannot be imported: ValueError: out of date"):
        load_adapter("broken")
    plan: Any = SimpleNamespace(document=SimpleNamespace(adapter=None))
    with pytest.raises(NotFound, match="none of those installed recognises it; adapter 'broken' cannot be imported"):
        adapter_for(plan)


def test_a_broken_adapter_does_not_keep_another_from_being_found(
    monkeypatch: pytest.MonkeyPatch, breaking: EntryPoint, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(tiny_model(tmp_path / "model"))
    offer(monkeypatch, breaking, point("also_broken", "no_such_module:Any"), CAUSAL)
    assert _adapter(None, checkpoint).name == "causal_lm"
    with pytest.raises(AdapterFault, match="adapter 'a_breaking': `unsupported` raised KeyError: 'width'"):
        _adapter("a_breaking", checkpoint)
    offer(monkeypatch, breaking, point("also_broken", "no_such_module:Any"))
    with pytest.raises(NotFound, match=r"`unsupported` raised KeyError: 'width'; adapter 'also_broken' cannot be imp"):
        _adapter(None, checkpoint)
