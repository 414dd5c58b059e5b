"""The game: find a hidden digit with four guesses; each hint says whether it is higher or lower."""

import random
from dataclasses import dataclass

RULES = "Guess."
FIRST = "0 to 9"
GUESSES = 4


@dataclass
class Game:
    """One game. `low` and `high`: the digits that are still possible."""

    target: int
    low: int = 0
    high: int = 9
    guesses: int = 0
    found: bool = False

    @classmethod
    def drawn(cls, seed: int | None) -> "Game":
        return cls(random.Random(seed).randrange(10))

    @property
    def is_over(self) -> bool:
        return self.found or self.guesses == GUESSES

    @property
    def middle(self) -> int:
        """The guess that finds every digit in time."""
        return (self.low + self.high + 1) // 2

    def guess(self, text: str) -> str:
        """Count a guess, which may be any text, and return the hint."""
        self.guesses += 1
        if len(text) != 1 or text not in "0123456789":
            return "not a digit"
        digit = int(text)
        if digit == self.target:
            self.found = True
            return "found"
        if digit < self.target:
            self.low = max(self.low, digit + 1)
            return "higher"
        self.high = min(self.high, digit - 1)
        return "lower"
