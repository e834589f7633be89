"""Patches replace an attribute and restore exactly what was there, in any order and beside other people's patches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend.core.errors import PatchError
from ov_backend.core.patching import Patch, Unshadow, is_patched, patch_forward, unwrap


class Greeter:
    def greet(self, name: str) -> str:
        """Greet by name."""
        return f"hello {name}"


def shadowed() -> tuple[Any, Any]:
    """A greeter whose class's method is shadowed by a function of its own, and that function."""

    def own(name: str) -> str:
        return f"good day {name}"

    greeter = Greeter()
    vars(greeter)["greet"] = own
    return greeter, own


def louder(original: Callable[..., str]) -> Callable[..., str]:
    return lambda name: original(name).upper()


def test_an_instance_is_patched_and_no_other() -> None:
    patched, other = Greeter(), Greeter()
    patch = Patch(patched, "greet", louder)
    assert patched.greet("ada") == "HELLO ADA"
    assert other.greet("ada") == Greeter().greet("ada") == "hello ada"
    assert patch.undo()
    assert patched.greet("ada") == "hello ada"
    assert "greet" not in vars(patched), "the class's attribute is used again"


def test_an_attribute_of_the_instance_is_restored_exactly() -> None:
    greeter, own = shadowed()
    patch = Patch(greeter, "greet", louder)
    assert greeter.greet("ada") == "GOOD DAY ADA"
    assert patch.undo()
    assert vars(greeter)["greet"] is own


def test_attributes_of_a_replaced_function_are_those_that_it_has_now() -> None:
    greeter, own = shadowed()
    own.volume = 1
    patch = Patch(greeter, "greet", louder)
    own.volume = 2
    assert greeter.greet.volume == 2
    greeter.greet.volume = 3
    assert own.volume == 3
    del greeter.greet.volume
    assert patch.undo()
    assert vars(own) == {}


def test_a_replaced_method_takes_no_new_attribute_as_no_method_does() -> None:
    greeter: Any = Greeter()
    patch = Patch(greeter, "greet", louder)
    with pytest.raises(AttributeError, match="volume"):
        greeter.greet.volume = 1
    assert patch.undo()


def test_a_class_is_patched_for_all_its_instances() -> None:
    class Child(Greeter):
        pass

    child = Child()
    patch = Patch(Child, "greet", lambda original: lambda self, name: original(self, name) + "!")
    assert (child.greet("ada"), Greeter().greet("ada")) == ("hello ada!", "hello ada")
    assert patch.undo()
    assert child.greet("ada") == "hello ada"
    assert "greet" not in vars(Child)


def test_a_patched_function_keeps_its_name_and_its_documentation() -> None:
    greeter = Greeter()
    Patch(greeter, "greet", louder)
    assert (greeter.greet.__name__, greeter.greet.__doc__) == ("greet", "Greet by name.")
    assert is_patched(greeter.greet)
    assert not is_patched(Greeter.greet)


def test_a_second_patch_is_refused_and_the_first_goes_on() -> None:
    greeter = Greeter()
    first = Patch(greeter, "greet", louder)
    with pytest.raises(PatchError, match=r"Greeter\.greet is already accelerated"):
        Patch(greeter, "greet", louder)
    assert greeter.greet("ada") == "HELLO ADA"
    assert first.undo()
    second = Patch(greeter, "greet", louder)
    assert second.undo()


def test_the_original_is_what_the_class_has_now(monkeypatch: pytest.MonkeyPatch) -> None:
    class Child(Greeter):
        pass

    greeter = Child()
    first = greeter.greet
    patch = Patch(greeter, "greet", louder)
    held = greeter.greet
    assert unwrap(held) == first
    assert unwrap(held) is unwrap(held), "guards look whether it is the same object"
    monkeypatch.setattr(Greeter, "greet", lambda self, name: f"hi {name}")
    assert unwrap(held)("ada") == "hi ada"
    monkeypatch.setattr(Child, "greet", staticmethod(lambda name: f"hey {name}"), raising=False)
    assert unwrap(held)("ada") == "hey ada"
    assert patch.undo()
    assert held("ada") == greeter.greet("ada") == "hey ada"


def test_a_second_undo_changes_nothing() -> None:
    greeter = Greeter()
    patch = Patch(greeter, "greet", louder)
    assert patch.undo()
    other = Patch(greeter, "greet", louder)
    assert patch.undo()
    assert greeter.greet("ada") == "HELLO ADA", "the other patch is still there"
    assert other.undo()


@pytest.mark.parametrize("make", [lambda greeter: Patch(greeter, "greet", louder), lambda greeter: Unshadow(greeter, "greet")])
def test_what_other_code_has_set_since_is_left_alone(make: Callable[[Any], Any]) -> None:
    greeter, _ = shadowed()
    change = make(greeter)
    foreign: Any = lambda name: "mine"  # noqa: E731
    greeter.greet = foreign  # type: ignore[method-assign]
    assert not change.undo()
    assert vars(greeter)["greet"] is foreign


def test_a_patch_that_other_code_wraps_calls_the_original_after_the_undo() -> None:
    """The other code holds on to our replacement, and restores it when it ends."""
    greeter = Greeter()
    patch = Patch(greeter, "greet", louder)
    held = greeter.greet
    greeter.greet = lambda name: held(name) + "!"  # type: ignore[method-assign]
    assert greeter.greet("ada") == "HELLO ADA!"
    assert not patch.undo()
    assert greeter.greet("ada") == "hello ada!"


def test_patches_of_two_attributes_are_undone_in_any_order() -> None:
    for order in ((0, 1), (1, 0)):
        greeter = Greeter()
        greeter.part = lambda name: f"bye {name}"  # type: ignore[attr-defined]
        patches = [Patch(greeter, "greet", louder), Patch(greeter, "part", louder)]
        assert all(patches[i].undo() for i in order)
        assert (greeter.greet("ada"), greeter.part("ada")) == ("hello ada", "bye ada")  # type: ignore[attr-defined]


def test_a_class_and_its_instance_are_undone_in_any_order() -> None:
    for order in ((0, 1), (1, 0)):
        greeter = Greeter()
        patches = [
            Patch(Greeter, "greet", lambda original: lambda self, name: original(self, name) + "!"),
            Patch(greeter, "greet", louder),
        ]
        assert greeter.greet("ada") == "HELLO ADA!"
        assert all(patches[i].undo() for i in order)
        assert greeter.greet("ada") == Greeter().greet("ada") == "hello ada"


def test_unwrap_finds_the_original_below_a_patch() -> None:
    greeter = Greeter()
    original = greeter.greet
    Patch(greeter, "greet", louder)
    assert unwrap(greeter.greet) == original
    assert unwrap(original) == original
    assert unwrap(3) == 3


def test_a_modules_forward_is_patched_for_one_instance() -> None:
    layers = [torch.nn.Linear(3, 3) for _ in range(2)]
    x = torch.randn(2, 3)
    before = [layer(x) for layer in layers]
    patch = patch_forward(layers[0], lambda original: lambda x: original(x) + 1)
    assert torch.equal(layers[0](x), before[0] + 1)
    assert torch.equal(layers[1](x), before[1])
    assert patch.undo()
    assert torch.equal(layers[0](x), before[0])


def test_an_unshadowed_attribute_is_the_classs_until_the_undo() -> None:
    greeter, own = shadowed()
    unshadow = Unshadow(greeter, "greet")
    assert greeter.greet("ada") == "hello ada"
    assert unshadow.undo()
    assert vars(greeter)["greet"] is own


def test_unshadowing_what_is_not_there_raises() -> None:
    with pytest.raises(KeyError):
        Unshadow(Greeter(), "greet")


def test_a_patch_beneath_an_unshadowed_attribute() -> None:
    """The order in which accelerate works on a module whose forward is shadowed."""
    greeter, own = shadowed()
    unshadow = Unshadow(greeter, "greet")
    patch = Patch(greeter, "greet", louder)
    assert greeter.greet("ada") == "HELLO ADA"
    assert patch.undo()
    assert unshadow.undo()
    assert vars(greeter)["greet"] is own
