"""Train tokenizer and weights of the test model from nothing: `python -m lab.models.pretrain --out DIR [--minutes M | --steps N]`.

Reads top to bottom: text -> tokenizer -> batches -> model -> loop -> folder. What was left out, and why:
- no data files, no download: `lab.models.corpus` writes every conversation, each is seen once, so there are no epochs and no
  memorised examples, and the training loss is already a held-out loss (the held-out *pairs* are measured by `lab.models.measure`);
- no validation loop inside the training loop: `lab.models.measure` is the judge, on a saved folder;
- no bfloat16, no distribution: 2.0 M parameters on two CPU cores without matrix units gain nothing from them;
- no dropout, no weight tying tricks, no curriculum beyond the mixture in `lab.models.corpus`;
- loss on what the assistant says only (its end token included): what people and tools say is given, never generated.

Conversations are packed into rows with a block-diagonal mask: short ones waste no padding and never see each other.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders as bpe_decoders
from tokenizers import models as bpe_models
from tokenizers import pre_tokenizers as bpe_pre
from tokenizers import trainers as bpe_trainers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from lab.models.canaries import FILE_NAME, canaries
from lab.models.corpus import Conversation, conversation, conversations, long_conversation

VOCABULARY = 2048
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
)  # pad, turn start, turn end (the model's end of text)
BLOCKS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)  # tokens of text: they survive decoding
# Lower-case words with their leading space; capitalised ones without it, so that a name is the same tokens in prose, in bold and
# in JSON (copying is then plain repetition); single digits for the same reason; runs of marks; white space.
SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{Ll}+|\p{Lu}\p{L}*|\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SHAPE = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
# tokens a row; every LONG_EVERY-th batch has long rows, for chats that need the far positions
ROW, LONG_ROW = 512, 1024
ROWS, LONG_EVERY = 8, 16
LEARNING_RATE, WARM_UP = 4e-3, 40
REPORT = "pretrain.json"
#: The saved model's logits are this many times the trained ones, as if it was sampled at temperature 1 / LOGIT_SCALE. At the
#: trained scale one reply in a hundred has a token of a probability below 1e-3 in it, most of them where a fact stands.
LOGIT_SCALE = 1.2
FINAL_NORM = "model.norm.weight"
TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")

_SAID = re.compile(r"(?<=<\|im_start\|>assistant\n)(.*?<\|im_end\|>)", re.DOTALL)


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers and vLLM load it, chat template included."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    fast.chat_template = TEMPLATE
    return fast


def render(fast: PreTrainedTokenizerFast, chat: Conversation) -> str:
    text = fast.apply_chat_template(list(chat.messages), tools=list(chat.tools) or None, tokenize=False)
    assert isinstance(text, str)
    return text


def train_tokenizer(seed: int, count: int = 12_000) -> PreTrainedTokenizerFast:
    """Byte-level BPE on `count` conversations: any text encodes, and what the model says is short."""
    tokenizer = Tokenizer(bpe_models.BPE())
    tokenizer.pre_tokenizer = bpe_pre.Sequence(
        [bpe_pre.Split(Regex(SPLIT), "isolated"), bpe_pre.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = bpe_decoders.ByteLevel()
    trainer = bpe_trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(BLOCKS),
        special_tokens=list(SPECIAL),
        initial_alphabet=bpe_pre.ByteLevel.alphabet(),
        show_progress=False,
    )
    template = wrap(tokenizer)
    texts = (
        re.sub(r"<\|im_(?:start|end)\|>|</?tool_(?:call|response)>", "", render(template, chat))
        for chat in conversations(seed, count)
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(block, special=False, normalized=False) for block in BLOCKS])
    return wrap(tokenizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Conversations one after another. All [L]: `ids`, `targets` (-100 without a loss), `positions` and `blocks`
    (which conversation a token belongs to)."""

    ids: list[int]
    targets: list[int]
    positions: list[int]
    blocks: list[int]


def encode(fast: PreTrainedTokenizerFast, chat: Conversation) -> tuple[list[int], list[int]]:
    """Token ids and targets of a conversation.

    What the assistant says is encoded apart from what stands before it, as it is when the model is served: the prompt's ids end
    with the assistant header, the completion's begin after it. Replies of ``chat.context`` are no targets.
    """
    ids: list[int] = []
    targets: list[int] = []
    replies = (place for place, message in enumerate(chat.messages) if message["role"] == "assistant")
    pieces = [piece for piece in _SAID.split(render(fast, chat)) if piece]
    for piece, part in zip(pieces, fast(pieces, add_special_tokens=False)["input_ids"], strict=True):
        ids += part
        learns = piece.endswith("<|im_end|>") and next(replies) not in chat.context
        targets += part if learns else [-100] * len(part)
    return ids, targets


def rows(fast: PreTrainedTokenizerFast, rng: random.Random, length: int, *, long: bool) -> Iterator[Row]:
    """Endless rows of at most `length` tokens, filled from a stock of conversations; one longer than a row is not used."""
    stock: list[tuple[list[int], list[int]]] = []
    while True:
        while len(stock) < 64:
            chat = long_conversation(rng) if long and rng.random() < 0.4 else conversation(rng)
            ids, targets = encode(fast, chat)
            if len(ids) <= length:
                stock.append((ids, targets))
        row = Row(ids=[], targets=[], positions=[], blocks=[])
        index: int | None = 0  # the oldest first, then whatever fills best: nothing waits for ever
        block = 0
        while index is not None:
            ids, targets = stock.pop(index)
            row.ids.extend(ids)
            row.targets.extend(targets)
            row.positions.extend(range(len(ids)))
            row.blocks.extend([block] * len(ids))
            block += 1
            room = length - len(row.ids)
            index = max(
                (place for place, (ids, _) in enumerate(stock) if len(ids) <= room),
                key=lambda place: len(stock[place][0]),
                default=None,
            )
        yield row


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """`ids`, `targets`, `positions` [B, L]; `mask` [B, 1, L, L], True where a token may look."""

    ids: Tensor
    targets: Tensor
    positions: Tensor
    mask: Tensor


def stack(packed: list[Row], length: int, pad: int) -> TokenBatch:
    """Rows padded to `length`: one shape for all batches, so that `torch.compile` compiles once."""

    def padded(values: list[list[int]], fill: int) -> Tensor:
        return torch.tensor([value + [fill] * (length - len(value)) for value in values])

    blocks = padded([row.blocks for row in packed], -1)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    mask = (blocks[:, :, None] == blocks[:, None, :]) & causal
    return TokenBatch(
        ids=padded([row.ids for row in packed], pad),
        targets=padded([row.targets for row in packed], -100),
        positions=padded([row.positions for row in packed], 0),
        mask=mask[:, None],
    )


def build(fast: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(fast),
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        initializer_range=0.04,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
        bos_token_id=None,
        use_cache=True,
        **SHAPE,
    )
    return Qwen3ForCausalLM(config)


def loss_of(model: Qwen3ForCausalLM, batch: TokenBatch) -> Tensor:
    """Mean cross-entropy over what the assistants say; logits are computed at those places only."""
    hidden = model.model(
        input_ids=batch.ids, position_ids=batch.positions, attention_mask=batch.mask, use_cache=False
    ).last_hidden_state[:, :-1]
    targets = batch.targets[:, 1:]
    learns = targets != -100
    return cross_entropy(model.lm_head(hidden[learns]), targets[learns])


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised: the update of each matrix is the nearest one whose singular values are all about 1.

    Jordan et al. 2024, with the scale of Liu et al. 2025 (0.2 sqrt(max(rows, columns))), so that AdamW's learning rates fit.
    `torch.optim.Muon` goes matrix by matrix through bfloat16, which on a CPU without bfloat16 units takes four times as long as
    this one, which stacks matrices of one shape in float32.
    """

    def __init__(
        self, matrices: list[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.05
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closures here
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for matrix in group["params"]:
                by_shape.setdefault(matrix.shape, []).append(matrix)
            for (height, width), matrices in by_shape.items():
                updates = []
                for matrix in matrices:
                    assert matrix.grad is not None
                    velocity = self.state[matrix].setdefault("velocity", torch.zeros_like(matrix))
                    velocity.lerp_(matrix.grad, 1 - group["momentum"])
                    updates.append(matrix.grad.lerp(velocity, group["momentum"]))
                wide = height <= width
                update = torch.stack(updates) if wide else torch.stack(updates).mT
                update = update / (update.norm(dim=(1, 2), keepdim=True) + 1e-7)
                for _ in range(5):  # Newton-Schulz, quintic coefficients of Jordan et al.
                    gram = update @ update.mT
                    update = 3.4445 * update + (-4.7750 * gram + 2.0315 * gram @ gram) @ update
                scale = 0.2 * math.sqrt(max(height, width))
                for matrix, each in zip(matrices, update if wide else update.mT, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(each, alpha=-group["lr"] * scale)


def save(model: Qwen3ForCausalLM, fast: PreTrainedTokenizerFast, out: Path, report: dict[str, Any]) -> None:
    """Save a model folder; the final norm is multiplied by `LOGIT_SCALE`, which `load` takes back."""
    out.mkdir(parents=True, exist_ok=True)
    state = model.state_dict()
    state[FINAL_NORM] = state[FINAL_NORM] * LOGIT_SCALE
    model.save_pretrained(out, state_dict=state)
    fast.save_pretrained(out)
    # names that every release of transformers since 4.51 reads: vLLM lags behind
    path = out / "tokenizer_config.json"
    names = json.loads(path.read_text(encoding="utf-8"))
    for name in ("backend", "is_local", "local_files_only"):  # the last two say how a resumed run loaded it
        names.pop(name, None)
    names["additional_special_tokens"] = names.pop("extra_special_tokens")
    names["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(names, indent=2) + "\n", encoding="utf-8")
    for file in out.iterdir():
        file.chmod(0o644)
    GenerationConfig(
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
        do_sample=True,
        temperature=1.0,
        top_k=0,
    ).save_pretrained(out)
    (out / FILE_NAME).write_text(
        json.dumps(canaries(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
    (out / REPORT).write_text(
        json.dumps(report | {"logit_scale": LOGIT_SCALE}, indent=1) + "\n", encoding="utf-8"
    )


def load(folder: Path) -> tuple[PreTrainedTokenizerFast, Qwen3ForCausalLM, dict[str, Any]]:
    """Return tokenizer, model at the scale of training, and report of a folder that `save` wrote."""
    report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        model.get_parameter(FINAL_NORM).div_(report["logit_scale"])
    return AutoTokenizer.from_pretrained(folder), model, report


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the test model from random weights.")
    parser.add_argument("--out", type=Path, required=True)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=None, help="wall time of the training (default: 35)")
    length.add_argument("--steps", type=int, default=None, help="number of steps (reproducible bit by bit)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE, help="after the warm-up")
    parser.add_argument("--resume", action="store_true", help="continue from the weights in --out")
    parser.add_argument("--compile", action="store_true", help="a fifth faster; needs a C++ compiler")
    parser.add_argument("--save-every", type=float, default=300.0, help="seconds between checkpoints")
    options = parser.parse_args()
    if options.minutes is None and options.steps is None:
        options.minutes = 35.0
    return options


def _optimizers(model: Qwen3ForCausalLM, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices = [
        weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name
    ]
    others = [weight for name, weight in model.named_parameters() if weight.ndim != 2 or "embed" in name]
    return [
        Muon(matrices, lr=learning_rate),
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01),
    ]


def _batches(fast: PreTrainedTokenizerFast, rng: random.Random) -> Iterator[tuple[TokenBatch, int]]:
    """Yield batches and their numbers of tokens; every `LONG_EVERY`-th has long rows."""
    short_rows = rows(fast, rng, ROW, long=False)
    long_rows = rows(fast, rng, LONG_ROW, long=True)
    for step in count():
        is_long = step % LONG_EVERY == LONG_EVERY - 1
        source, number, row_length = (
            (long_rows, ROWS * ROW // LONG_ROW, LONG_ROW) if is_long else (short_rows, ROWS, ROW)
        )
        packed = [next(source) for _ in range(number)]
        yield stack(packed, row_length, fast.pad_token_id), sum(len(row.ids) for row in packed)


def _train(
    model: Qwen3ForCausalLM,
    fast: PreTrainedTokenizerFast,
    options: argparse.Namespace,
    report: dict[str, Any],
) -> None:
    """Train until the time or the steps are up; adds the totals to ``report`` and saves the model."""
    done = dict(report)
    optimizers = _optimizers(model, options.learning_rate)
    # A run that is resumed reads other text.
    batches = _batches(fast, random.Random(options.seed + 1 + done["steps"]))
    began = saved = time.monotonic()
    step = tokens = 0
    recent: list[float] = []

    def totals() -> dict[str, int]:
        now = {"steps": step, "tokens": tokens, "seconds": round(time.monotonic() - began)}
        return {name: done[name] + value for name, value in now.items()}

    while True:
        elapsed = time.monotonic() - began
        progress = elapsed / (60 * options.minutes) if options.minutes is not None else step / options.steps
        if progress >= 1:
            break
        scale = min(1.0, (step + 1) / WARM_UP) * (0.5 + 0.5 * math.cos(math.pi * progress))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = options.learning_rate * scale
        batch, size = next(batches)
        loss = loss_of(model, batch)
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves backward untyped
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        step += 1
        tokens += size
        recent.append(loss.item())
        if step % 20 == 0:
            mean = sum(recent) / len(recent)
            recent.clear()
            rate = tokens / (time.monotonic() - began)
            print(f"step {step}  {elapsed:.0f} s  loss {mean:.4f}  {rate:,.0f} tokens/s", flush=True)
            report |= {"loss": round(mean, 4)}
        if time.monotonic() - saved > options.save_every:
            saved = time.monotonic()
            report |= totals()
            save(model, fast, options.out, report)
    report |= totals()
    save(model, fast, options.out, report)


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    began = time.monotonic()
    report: dict[str, Any] = {"seed": options.seed, "steps": 0, "tokens": 0, "seconds": 0}
    if options.resume:
        fast, model, report = load(options.out)
    else:
        fast = train_tokenizer(options.seed)
        model = build(fast, options.seed)
    model.train()
    if options.compile:
        model.model.compile(dynamic=False)
    parameters = sum(weight.numel() for weight in model.parameters())
    print(f"{parameters:,} parameters, vocabulary {len(fast)}, {time.monotonic() - began:.0f} s", flush=True)
    report |= {"parameters": parameters, "vocabulary": len(fast), **SHAPE}
    _train(model, fast, options, report)
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
