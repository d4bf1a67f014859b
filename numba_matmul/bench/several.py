"""What was measured on several GPUs: a card per kind and number of them, made by `tools/several_gpus.py`."""
import json
from functools import cache

import fastjsonschema

from ..cards import RESULTS, card_folder, write_whole
from .experiment import Experiment

NUMBERS = {2: "two", 4: "four", 8: "eight"}

@cache
def _schema():
    text = (RESULTS/"schema"/"several.schema.json").read_text(encoding="utf-8")
    return fastjsonschema.compile(json.loads(text))

def check_several_card(card: dict):
    "Raises `ValueError` unless the card follows its schema."
    try: _schema()(card)
    except fastjsonschema.JsonSchemaException as e:
        raise ValueError(f"{e}".replace("data", "card", 1)) from None

def several_cards() -> list:
    "The cards of several GPUs: those with the fewest GPUs first, then by file name."
    paths = sorted(card_folder().glob("several/*.json"))
    cards = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    for card in cards: check_several_card(card)
    return sorted(cards, key=lambda card: card["gpus"])

def of_several(card: dict) -> str:
    "The GPUs of a card, as text."
    return f"{NUMBERS.get(card['gpus'], card['gpus'])} {card['gpu']}"

def recorded_on_several(
    name: str,  # of an experiment
) -> Experiment:
    "An experiment from the first card that has it, or an empty one."
    for card in several_cards():
        if kept := card["experiments"].get(name):
            source = f"Recorded on {of_several(card)}, {kept['date']}."
            return Experiment(name, kept["unit"], kept["values"], source, card["gpu"])
    return Experiment(name, "", {}, "Not recorded yet.")

def write_several_card(
    card: dict,  # "gpu", "gpus", and what to keep; experiments join those that the card already has
):              # its path
    "Write the card of several GPUs. `ValueError` if it wouldn't follow the schema."
    stem = "-".join("".join(x if x.isalnum() else " " for x in card["gpu"].lower()).split())
    path = card_folder()/"several"/f"{stem}-x{card['gpus']}.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    card = old | card | dict(experiments=old.get("experiments", {}) | card["experiments"])
    check_several_card(card)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(card, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    return path
