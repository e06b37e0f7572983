"""What every architecture must pass."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors.torch import load_file

from core.errors import ModelError
from core.model_spec.decoder import DecoderSpec
from core.models.layers.decoder import Decoder
from core.testing.checkpoints import ARCHITECTURES, tiny_config
from core.testing.conformance.examples import stated
from core.testing.draw import draw_weights
from core.testing.one_sequence import Session, plain_context

if TYPE_CHECKING:
    from core.testing.conformance import Subject


def check_refuses_an_empty_config_by_name(subject: Subject) -> None:
    """A config without a needed field is the checkpoint's fault: `ModelError` names the field."""
    try:
        subject.target(SimpleNamespace())
    except ModelError:
        return
    except Exception as error:
        raise AssertionError(
            f"{subject.entry.name}: an empty config raises {type(error).__name__} ({error}); read "
            "fields through "
            "ModelFacts, or raise ModelError naming the field."
        ) from error


def check_equal_configs_give_equal_facts(subject: Subject) -> None:
    """The function is pure: workers of one engine read the config separately and must agree."""
    config = _example(subject)
    if config is not None and isinstance(subject.target(config), DecoderSpec):
        assert subject.target(config) == subject.target(config), (
            f"{subject.entry.name}: two reads differ."
        )


def check_tiny_form_runs_in_chunks(subject: Subject) -> None:
    """Computed whole, in chunks and token by token, a sequence gives the same finite
    log-probabilities.
    """
    config = _example(subject)
    if config is None:
        return
    model = _built(subject, config)
    shapes = model.weight_shapes() if hasattr(model, "weight_shapes") else {}
    generator = torch.Generator().manual_seed(0)
    model.load_weights([(name, _draw(name, shape, generator)) for name, shape in shapes.items()])
    ids = [index % model.vocab_size for index in range(40)]
    whole = Session(model).step(ids)
    assert whole.shape == (40, model.vocab_size), (
        f"{subject.entry.name}: logits have shape {tuple(whole.shape)}."
    )
    assert whole.isfinite().all(), f"{subject.entry.name}: a log-probability is not finite."
    session = Session(model)
    parts = torch.cat([session.step(ids[:7]), session.step(ids[7:39]), session.step(ids[39:])])
    difference = (whole - parts).abs().max().item()
    assert difference < 1e-3, (
        f"{subject.entry.name}: chunks change log-probabilities by {difference:.2g}."
    )


def check_equals_its_oracle(subject: Subject) -> None:
    """Another implementation computes the same log-probabilities from the same weights, for every
    token of a sequence.

    `ORACLE` is the name of transformers' class for such a config, or a function (config, weights by
    name, token ids) that returns logits [tokens, vocab].
    """
    if subject.entry.name in ARCHITECTURES:
        return  # transformers' class of that name; the engine's own tests compare every one
    oracle = stated(subject, "ORACLE")
    form = 'ORACLE = "LlamaForCausalLM", or a function (config, weights, token_ids) -> logits'
    assert oracle or subject.builtin, (
        f"{subject.entry.name}: define {form} next to it: the reference."
    )
    config = _example(subject)
    if config is None or not oracle:
        return
    ids = [
        (7 * i + i * i) % config.vocab_size for i in range(60)
    ]  # beyond tiny forms' windows and first contexts
    weights, truth = _truth(oracle, config, ids, subject)
    model = _built(subject, config)
    model.load_weights(list({**_tower_weights(model), **weights}.items()))
    found = Session(model).step(ids)
    difference = (found - truth.float().log_softmax(-1)).abs().max().item()
    assert difference < 2e-3, (
        f"{subject.entry.name}: log-probabilities are off by {difference:.3g} from its oracle's."
    )


def check_states_a_tiny_config(subject: Subject) -> None:
    """`EXAMPLE_CONFIG`, a small config.json as a mapping, is what the model is built from here."""
    known = subject.builtin or _example(subject) is not None
    assert known, f"{subject.entry.name}: define EXAMPLE_CONFIG next to it."


def check_tower_encodes_its_example(subject: Subject) -> None:
    """A tower loads exactly its own tensors, and returns a row of the decoder's size for each
    placeholder token.

    `EXAMPLE_ITEM` is (modality, number of placeholder tokens, tensors of its input processor).
    """
    config = _example(subject)
    model: Any = None if config is None else _built(subject, config)
    tower = getattr(model, "tower", None)
    item = stated(subject, "EXAMPLE_ITEM")
    if tower is None or (item is None and subject.builtin):
        return
    name = subject.entry.name
    assert item, f"{name}: define EXAMPLE_ITEM next to it: (modality, tokens, tensors by name)."
    weights = _tower_weights(model)
    try:
        tower.load_weights(dict(list(weights.items())[1:]))
    except ModelError:
        tower.load_weights(weights)
    else:
        raise AssertionError(f"{name}: a tower without one of its tensors raises no ModelError.")
    modality, num_tokens, tensors = item
    assert modality in tower.facts.placeholders, f"{name}: no placeholder token for {modality!r}."
    with torch.inference_mode():
        first, again = (tower.encode(modality, tensors) for _ in range(2))
    shape = (num_tokens, model.spec.hidden_size)
    for rows in (first.embeddings, *first.deepstack):
        assert rows.shape == shape, f"{name}: rows have shape {tuple(rows.shape)}, not {shape}."
        assert rows.isfinite().all(), f"{name}: a row of the tower is not finite."
    assert first.embeddings.equal(again.embeddings), f"{name}: an item is encoded in two ways."


def _tower_weights(model: Any) -> dict[str, torch.Tensor]:
    """Return random tensors of a model's tower, by name; none without a tower."""
    tower = getattr(model, "tower", None)
    generator = torch.Generator().manual_seed(2)
    shapes = {} if tower is None else tower.weight_shapes()
    return {name: _draw(name, shape, generator) for name, shape in shapes.items()}


def _truth(
    oracle: Any, config: Any, ids: list[int], subject: Subject
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return weights, drawn here, and what the oracle makes of them: logits [tokens, vocab]."""
    if callable(oracle):
        generator = torch.Generator().manual_seed(1)
        shapes = _built(subject, config).weight_shapes()
        weights = {name: _draw(name, shape, generator) for name, shape in shapes.items()}
        return weights, torch.as_tensor(oracle(config, weights, ids))
    model_class: Any = getattr(transformers, oracle)
    fields = deepcopy(vars(config))  # it changes what is nested
    model = model_class(
        model_class.config_class(**fields, attn_implementation="eager")
    ).eval()  # knows caps and sinks
    draw_weights(model, seed=1)
    with torch.inference_mode(), TemporaryDirectory() as folder:
        model.save_pretrained(
            folder
        )  # in a file some tensors have other names, or are split otherwise
        weights = load_file(Path(folder) / "model.safetensors")
        return weights, model(torch.tensor([ids])).logits[0]


def _built(subject: Subject, config: Any) -> Any:
    spec = subject.target(config)
    return (
        Decoder(spec, plain_context())
        if isinstance(spec, DecoderSpec)
        else spec.build(plain_context())
    )


def _example(subject: Subject) -> Any:
    """Return a tiny config: the kit's own, or `EXAMPLE_CONFIG` (a mapping) of the architecture's
    module.
    """
    if subject.entry.name in ARCHITECTURES:
        return SimpleNamespace(**json.loads(tiny_config(subject.entry.name).to_json_string()))
    example = stated(subject, "EXAMPLE_CONFIG")
    return None if example is None else SimpleNamespace(**example)


def _draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    if name.endswith("tid2eid"):  # the experts of each token id
        return torch.arange(shape[-1]).expand(shape)
    noise = torch.randn(shape, generator=generator)
    return (
        noise / shape[-1] ** 0.5 if len(shape) > 1 else noise * 0.1 + float(name.endswith("weight"))
    )
