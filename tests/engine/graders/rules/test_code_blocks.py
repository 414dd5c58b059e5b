"""Which part of a completion is its code."""

import pytest

from grpo_engine.graders.rules.code_verdict import code_of

DOCUMENTED = 'def f():\n    """\n    ```py\n    f()\n    ```"""'


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x = 1", "x = 1"),
        ("a\n```python\nx = 1\n```\nb", "x = 1"),
        ("```python\nx = 1\n```\n```py\nx = 2\n```\n```\nshown: 3\n```", "x = 2"),
        ("```\nx = 1\n```", "x = 1"),
        ("```python\nx = 1", "x = 1"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''"),
        ("~~~Python3\nx = 1\n~~~", "x = 1"),
        ("1. a\n   ```py\n   if x:\n       y\n\n  z\n   ```", "if x:\n    y\n\nz"),
        (DOCUMENTED, DOCUMENTED),
        ("```bash\nls\n```", "```bash\nls\n```"),
        ("Code:```python\nx = 1\n```\nUse ``x``.\n", "x = 1"),
    ],
)
def test_the_last_python_block_is_the_code(text: str, code: str) -> None:
    assert code_of(text) == code
