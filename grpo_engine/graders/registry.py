"""The kinds of rule that score on their own; `multi` combines them."""

from __future__ import annotations

from grpo_engine.graders.leaf import LeafGrader
from grpo_engine.graders.rules.process import Process

SingleGrader = LeafGrader | Process
