"""Attributes of other code that are replaced for a while."""

import copy
import pickle
import types

from kinetoscope._replacements import Replacements


class Trainer:
    """Has a method."""

    def step(self):
        return "theirs"


def ours():
    return "ours"


def test_modules_classes_dictionaries_and_objects_get_back_what_they_had():
    module, scope, trainer = types.ModuleType("replaced"), {"function": print}, Trainer()
    module.function = print
    method = vars(Trainer)["step"]
    replacements = Replacements()
    for owner, name in ((module, "function"), (scope, "function"), (Trainer, "step"), (trainer, "step")):
        replacements.put(owner, name, ours)
    assert (module.function, scope["function"], trainer.step()) == (ours, ours, "ours")
    assert replacements
    replacements.restore()
    assert (module.function, scope["function"], vars(Trainer)["step"]) == (print, print, method)
    assert vars(trainer) == {}
    assert not replacements


def test_what_other_code_replaced_meanwhile_stays():
    trainer, replacements = Trainer(), Replacements()
    replacements.put(trainer, "step", ours)
    trainer.step = print
    replacements.restore()
    assert trainer.step is print


def test_what_was_replaced_twice_is_what_it_was_at_first():
    trainer, replacements = Trainer(), Replacements()
    replacements.put(trainer, "step", ours)
    replacements.put(trainer, "step", print)
    replacements.restore()
    assert trainer.step() == "theirs"


def test_a_copy_has_replaced_nothing():
    trainer, replacements = Trainer(), Replacements()
    replacements.put(trainer, "step", lambda: "ours")
    for other in (copy.copy(replacements), pickle.loads(pickle.dumps(replacements))):
        assert not other
        other.restore()
    assert trainer.step() == "ours"
