"""Why a job failed, or why it learns poorly: causes with evidence, and what to change."""
