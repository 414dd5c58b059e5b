"""The cache of rows that are decoded together: any schedule equals each row alone, by the model itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo_engine.models import lora
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.sampler import cache
from grpo_engine.rollout.sampler.cache import Prefill, RowCache
from grpo_engine.rollout.sampler.decoding import Kernels, OwnLayers, SharedDecoder

pytestmark = pytest.mark.usefixtures("both_ways")
VOCABULARY = 60


def decoder_of(policy: Policy, way: str = "kernels") -> SharedDecoder:
    if way == "own layers":
        return SharedDecoder(policy.model, OwnLayers(policy.model))
    assert policy.fast is not None
    return SharedDecoder(policy.model, Kernels(policy.fast))


@dataclass
class Followed:
    """A decoder, and the whole rows that it should be decoding."""

    policy: Policy
    decoder: SharedDecoder
    rows: list[list[int]] = field(default_factory=list)
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def tokens(self, count: int) -> list[int]:
        return torch.randint(6, VOCABULARY, (count,), generator=self.generator).tolist()  # type: ignore[no-any-return]

    def begin(self, lengths: Sequence[int], group_size: int) -> None:
        prompts = [self.tokens(length) for length in lengths]
        self.rows = [list(prompt) for prompt in prompts for _ in range(group_size)]
        self.check(self.decoder.start(prompts, group_size))

    def step(self) -> None:
        tokens = self.tokens(len(self.rows))
        for row, token in zip(self.rows, tokens, strict=True):
            row.append(token)
        self.check(self.decoder.step(torch.tensor(tokens)))

    def keep(self, places: Sequence[int]) -> None:
        self.rows = [self.rows[place] for place in places]
        self.decoder.keep(torch.tensor(places))

    def join(self, lengths: Sequence[int], group_size: int) -> None:
        prompts = [self.tokens(length) for length in lengths]
        new = [list(prompt) for prompt in prompts for _ in range(group_size)]
        self.rows += new
        self.check(self.decoder.join(prompts, group_size), new)

    def check(self, logits: Tensor, rows: list[list[int]] | None = None) -> None:
        """Against the model's own padded forward."""
        rows = self.rows if rows is None else rows
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        ends = torch.tensor([len(row) - 1 for row in rows])
        mask = (torch.arange(padded.shape[1]) <= ends[:, None]).long()
        expected = self.policy.model(input_ids=padded, attention_mask=mask, use_cache=False).logits
        difference = (logits - expected[torch.arange(len(rows)), ends]).abs().max()
        assert float(difference) < 2e-5


@pytest.fixture
def follow(make_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Followed]:
    policies = {family: make_policy(family) for family in ("qwen3", "llama")}

    def made(growth: int, way: str = "kernels", family: str = "qwen3") -> Followed:
        monkeypatch.setitem(cache.GROWTH, "cpu", growth)
        return Followed(policies[family], decoder_of(policies[family], way))

    return made


steps = st.tuples(st.just("step"), st.integers(1, 4))
leavings = st.tuples(st.just("keep"), st.integers(0, 2**30))
joins = st.tuples(
    st.just("join"), st.tuples(st.lists(st.integers(1, 12), min_size=1, max_size=3), st.integers(1, 3))
)
beginnings = st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 4))
schedules = st.lists(st.one_of(steps, leavings, joins), min_size=1, max_size=7)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(beginning=beginnings, schedule=schedules, growth=st.sampled_from([1, 3, 16]))
def test_any_order_of_steps_leavings_and_joins_is_each_row_alone(
    follow: Callable[..., Followed],
    beginning: tuple[list[int], int],
    schedule: list[tuple[str, object]],
    growth: int,
) -> None:
    with torch.no_grad():
        run = follow(growth)
        run.begin(*beginning)
        for what, how in schedule:
            if what == "step":
                for _ in range(how):  # type: ignore[call-overload]
                    run.step()
            elif what == "keep":
                chosen = [place for place in range(len(run.rows)) if how >> place % 30 & 1]  # type: ignore[operator]
                run.keep(chosen or [len(run.rows) - 1])
            else:
                run.join(*how)  # type: ignore[misc]
        run.step()


@pytest.mark.parametrize("way", ["kernels", "own layers"])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
@torch.no_grad()
def test_a_longer_prompt_joins_rows_that_run(follow: Callable[..., Followed], way: str, family: str) -> None:
    run = follow(2, way, family)
    run.begin([2, 3], 2)
    run.step()
    run.join([20, 1], 3)
    for _ in range(4):
        run.step()
    run.join([7], 1)
    run.step()


@pytest.mark.parametrize("way", ["kernels", "own layers"])
@torch.no_grad()
def test_a_prompt_is_dropped_with_its_last_row(follow: Callable[..., Followed], way: str) -> None:
    run = follow(4, way)
    run.begin([5, 8, 3], 3)
    run.step()
    run.keep([0, 1, 2, 7])
    run.step()
    assert len(run.decoder.cache.prompts.bias) == 2
    run.keep([3])
    run.step()
    run.join([6], 2)
    run.step()


@torch.no_grad()
def test_rows_join_before_any_step_and_leave_in_another_order(follow: Callable[..., Followed]) -> None:
    run = follow(4)
    run.begin([3], 2)
    run.join([9, 2], 2)
    run.step()
    run.keep([5, 0, 2])
    run.step()


@torch.no_grad()
def test_prompts_are_kept_once_for_their_group(make_policy: Callable[..., Policy]) -> None:
    run = Followed(make_policy(), decoder_of(make_policy()))
    run.begin([64, 3], 4)
    assert run.decoder.cache.prompts.keys[0].shape[0] == 2
    assert run.decoder.cache.length == 0


def random_prefill(
    lengths: tuple[int, ...], heads: int, dtype: torch.dtype = torch.float64, value_size: int = 4
) -> Prefill:
    generator = torch.Generator().manual_seed(3)
    keys, values = (
        torch.randn(sum(lengths), heads, size, generator=generator, dtype=torch.float64).to(dtype)
        for size in (4, value_size)
    )
    return Prefill({0: keys}, {0: values}, lengths)


@pytest.mark.parametrize("value_size", [4, 3, 7])
@pytest.mark.parametrize(("heads", "shared"), [(2, 1), (2, 2), (1, 4), (3, 4)])
def test_attention_to_a_shared_prompt_equals_its_formula(heads: int, shared: int, value_size: int) -> None:
    lengths, group, scale = (5, 1, 9), 3, 0.3
    prefill = random_prefill(lengths, heads, value_size=value_size)
    rows, generator = RowCache(prefill, group), torch.Generator().manual_seed(1)
    seen = [
        [states[0].split(lengths)[row // group] for states in (prefill.keys, prefill.values)]
        for row in range(9)
    ]
    for turn in range(5):
        query = torch.randn(len(seen), heads * shared, 4, generator=generator, dtype=torch.float64)
        shapes = ((len(seen), heads, size) for size in (4, value_size))
        new = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        rows.length += 1
        rows.advance()
        made = rows.attend(0, query, new[0], new[1], scale)
        for row, states in enumerate(seen):
            seen[row] = [torch.cat([old, each[row : row + 1]]) for old, each in zip(states, new, strict=True)]
            keys, values = (each.repeat_interleave(shared, 1) for each in seen[row])
            weights = (torch.einsum("hd,thd->ht", query[row], keys) * scale).softmax(-1)
            expected = torch.einsum("ht,thd->hd", weights, values).flatten()
            assert torch.allclose(made[row], expected, rtol=0, atol=1e-12)
        if turn == 2:
            kept = [0, 4, 6, 7, 8]
            rows.keep(torch.tensor(kept))
            seen = [seen[row] for row in kept]


def test_growing_keeps_the_old_columns_and_hides_the_new_ones() -> None:
    rows = RowCache(random_prefill((5, 2), 2), 2)
    rows.keys[0].normal_()
    before, capacity = rows.keys[0].clone(), rows.capacity
    rows.grow()
    assert torch.equal(rows.keys[0][:, :, :capacity], before)
    assert rows.capacity > capacity
    assert bool((rows.bias[:, :, capacity:] == float("-inf")).all())


@torch.no_grad()
def test_bfloat16_rows_stay_close_to_float64() -> None:
    """Within four roundings of the largest number."""
    query, key, value = torch.randn(3, 4, 2, 4, dtype=torch.float64)
    made = []
    for dtype in (torch.float64, torch.bfloat16):
        cache = RowCache(random_prefill((5, 9), 2, dtype), 2)
        cache.length += 1
        cache.advance()
        made.append(cache.attend(0, query.to(dtype), key.to(dtype), value.to(dtype), 0.5))
    assert made[1].dtype == torch.bfloat16
    assert float((made[0] - made[1].double()).abs().max()) < 2**-6 * float(made[0].abs().max())


@torch.no_grad()
def test_large_scores_are_not_rounded_in_bfloat16() -> None:
    """Between 64 and 128 two numbers of bfloat16 are 0.5 apart."""
    query, key, value = (each.bfloat16() for each in torch.randn(3, 4, 2, 4, dtype=torch.float64))
    made = []
    for dtype in (torch.float64, torch.bfloat16):
        prefill = random_prefill((5, 9), 2, torch.bfloat16)
        states = ({n: each.to(dtype) for n, each in own.items()} for own in (prefill.keys, prefill.values))
        cache = RowCache(Prefill(*states, prefill.lengths), 2)
        cache.length += 1
        cache.advance()
        made.append(cache.attend(0, query.to(dtype), key.to(dtype), value.to(dtype), 32.0))
    assert float((made[0] - made[1].double()).abs().max()) < 0.01 * float(made[0].abs().max())


@torch.no_grad()
def test_a_decoding_uses_the_weights_merged_at_its_start(
    make_policy: Callable[..., Policy],
) -> None:
    policy = make_policy()
    assert policy.peft_model is not None
    prompts, tokens = [[7, 8, 9], [10]], torch.tensor([11, 12, 13, 14])
    found = []
    for inside in (lora.merged(policy.peft_model), policy.peft_model.disable_adapter()):
        with inside:
            decoder = decoder_of(policy)
            decoder.start(prompts, 2)
            found.append(decoder.step(tokens))
    decoder = decoder_of(policy)
    decoder.start(prompts, 2)
    assert torch.allclose(found[0], decoder.step(tokens), atol=1e-5)
    assert float((found[0] - found[1]).abs().max()) > 1e-2


@torch.no_grad()
def test_a_row_beyond_the_models_last_position_affects_no_other(
    make_policy: Callable[..., Policy],
) -> None:
    """It has ended, and has not left yet."""
    policy = make_policy("gpt2")
    assert policy.max_length is not None
    run = Followed(policy, decoder_of(policy, "own layers"))
    run.begin([policy.max_length - 1, 4], 1)
    run.step()
    for _ in range(3):
        token = run.tokens(1)[0]
        run.rows[1].append(token)
        logits = run.decoder.step(torch.tensor([5, token]))
        run.check(logits[1:], run.rows[1:])


@torch.no_grad()
def test_unused_columns_are_released(follow: Callable[..., Followed]) -> None:
    """The cache stays as long as the longest running row, however many rows join and leave."""
    run = follow(2)
    run.begin([3, 5], 1)
    for _ in range(10):
        for _ in range(4):
            run.step()
        run.join([2], 1)
        run.keep(range(1, len(run.rows)))
    assert run.decoder.cache.length < 20
    assert run.decoder.cache.capacity < 30
