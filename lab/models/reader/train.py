"""`python -m lab.models.reader.train`: train the reaction classifier and write its weights.

Deterministic on one machine: seeds are fixed and one thread computes. Prints a table over a held-out generated split.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from lab.models.reader.exchanges import exchange_samples
from lab.models.reader.generate import CLASSES, WISH, Sample, generate
from lab.models.reader.labelled import labelled_samples
from lab.models.reader.wishes import (
    LASTING,
    SCOPES,
    Message,
    held_out_messages,
    scope_samples,
    style_rows,
    style_scopes,
)
from scorers.classifier import WEIGHTS, Classifier, slots
from scorers.combined import read_message
from scorers.features import features
from scorers.own_words import hide_foreign

#: Buckets of the hash table, a power of 2.
BUCKETS = 1 << 17
#: Size of an embedding and of the hidden layer.
EMBED, HIDDEN = 15, 64
#: A feature that fewer samples have stays unknown: more than the copies of one labelled reaction, so that none is learned by heart.
MIN_COUNT = 18
EPOCHS = 4
#: Networks that are averaged.
NETWORKS = 4
BATCH = 256
LEARNING_RATE = 0.004
#: Share of a sample's features that is left out anew in every epoch.
FEATURE_DROPOUT = 0.45
LABEL_SMOOTHING = 0.03
#: Share of the batches in which each message is mixed with another one.
MIXED_BATCHES = 0.3
#: Errors on "neither" count more: a false complaint unteaches, a missed one is only missed.
CLASS_WEIGHTS = (1.6, 1.2, 1.0, 1.0, 1.0)

#: Weight of the loss of the scope, beside the reaction's.
SCOPE_WEIGHT = 1.0

SAMPLES = 100_000
#: For each of them, so many copies of reactions that were labelled by hand (`lab.models.reader.labelled`).
LABELLED = 3.9
#: ... and messages with a wish or none (`lab.models.reader.wishes`).
STATED = 0.3
#: ... and reactions that only the reply explains (`lab.models.reader.exchanges`).
EXPLAINED = 0.2
#: Processes that read the features.
PROCESSES = 2
HELD_OUT = 20_000
SEED = 20_261_123

Hashes = list[npt.NDArray[np.uint32]]


def _hashes(sample: Sample) -> npt.NDArray[np.uint32]:
    found = features(
        hide_foreign(sample.text),
        reply=sample.reply,
        prompt=sample.prompt,
        before=sample.before,
        after=sample.after,
    )
    return np.array(found, dtype=np.uint32)


def hash_samples(samples: list[Sample]) -> Hashes:
    """Return the feature hashes of each sample."""
    if len(samples) < 10_000:
        return [_hashes(sample) for sample in samples]
    with Pool(PROCESSES) as pool:
        return pool.map(_hashes, samples, chunksize=500)


def choose_owners(hashes: Hashes, least: int = MIN_COUNT) -> npt.NDArray[np.uint8]:
    """Give each bucket to its most frequent feature; returns the fingerprints [BUCKETS], 0 where there is none."""
    values, counts = np.unique(np.concatenate(hashes), return_counts=True)
    order = np.lexsort((values, -counts))
    buckets, prints = slots(values[order[counts[order] >= least]], BUCKETS)
    owned, first = np.unique(buckets, return_index=True)
    owners = np.zeros(BUCKETS, dtype=np.uint8)
    owners[owned] = prints[first]
    return owners


def known_rows(hashes: Hashes, owners: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.int64]]:
    """Return the known buckets of each sample."""
    rows = []
    for row in hashes:
        buckets, prints = slots(row, BUCKETS)
        rows.append(buckets[owners[buckets] == prints])
    return rows


class Network(torch.nn.Module):
    """The trained side of `scorers.classifier.Classifier`."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.EmbeddingBag(BUCKETS, EMBED, mode="sum", sparse=True)
        torch.nn.init.normal_(self.table.weight, std=0.02)
        self.hidden = torch.nn.Linear(EMBED, HIDDEN)
        self.out = torch.nn.Linear(HIDDEN, len(CLASSES) + len(SCOPES))

    def forward(self, flat: torch.Tensor, offsets: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        """flat [sum of sizes] buckets, offsets [B], sizes [B] -> logits [B, 5 + 5]: of the reaction, and of the scope."""
        bag = self.table(flat, offsets) / sizes.clamp(min=1).sqrt().unsqueeze(1)
        logits: torch.Tensor = self.out(torch.relu(self.hidden(bag)))
        return logits


def train(
    samples: list[Sample],
    *,
    seed: int = SEED,
    epochs: int = EPOCHS,
    networks: int = NETWORKS,
    least: int = MIN_COUNT,
    log: bool = True,
) -> dict[str, npt.NDArray[np.generic]]:
    """Train on samples; returns the arrays of a weights file.

    Args:
        networks: so many are trained from different beginnings and stand side by side in the file: their logits are averaged, so that
            a message of which the samples say little is decided only where they agree.
        least: samples that a known feature has; few samples need fewer.
    """
    torch.set_num_threads(1)
    hashes = hash_samples(samples)
    owners = choose_owners(hashes, least)
    rows = known_rows(hashes, owners)
    del hashes
    wanted = _targets(samples)
    found = [
        _quantised(_train_network(rows, wanted, seed=seed + i, epochs=epochs, log=log), owners)
        for i in range(networks)
    ]
    return found[0] if networks == 1 else _side_by_side(found)


def _targets(samples: list[Sample]) -> torch.Tensor:
    """Return [N, 5 + 5]: the smoothed class, zeros where it is not known; ones for the scopes that may be right, all where it is not known."""
    found = torch.zeros(len(samples), len(CLASSES) + len(SCOPES))
    for row, sample in zip(found, samples, strict=True):
        if sample.label is not None:
            row[: len(CLASSES)] = LABEL_SMOOTHING / len(CLASSES)
            row[sample.label] += 1 - LABEL_SMOOTHING
        for scope in sample.scopes or range(len(SCOPES)):
            row[len(CLASSES) + scope] = 1
    return found


def _loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the reaction, and minus the log of what the right scopes have together; a mean over the batch."""
    size = len(CLASSES)
    classes = torch.tensor(CLASS_WEIGHTS) * targets[:, :size]
    reaction = -(classes * torch.log_softmax(logits[:, :size], dim=1)).sum() / classes.sum().clamp(min=1)
    scope = torch.log_softmax(logits[:, size:], dim=1).exp()
    right = (scope * targets[:, size:]).sum(dim=1).clamp(min=1e-6)
    return reaction - SCOPE_WEIGHT * torch.log(right).mean()


def _train_network(
    rows: list[npt.NDArray[np.int64]], wanted: torch.Tensor, *, seed: int, epochs: int, log: bool
) -> Network:
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    network = Network()
    # Dense moments of the whole table would cost most of the time: a batch touches few of its rows. Without a first moment, a rare
    # row moves as far as it would with a dense one, which goes on moving it for ten steps.
    dense = [*network.hidden.parameters(), *network.out.parameters()]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.SparseAdam(network.table.parameters(), lr=LEARNING_RATE, betas=(0.0, 0.999)),
        torch.optim.Adam(dense, lr=LEARNING_RATE),
    ]
    steps = epochs * (len(rows) // BATCH)
    schedules = [
        torch.optim.lr_scheduler.OneCycleLR(
            optimizer, LEARNING_RATE, total_steps=max(steps, 20), pct_start=0.1, cycle_momentum=False
        )
        for optimizer in optimizers
    ]
    for epoch in range(epochs):
        order = rng.permutation(len(rows))
        total = 0.0
        for start in range(0, len(rows) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            targets = wanted[torch.from_numpy(chosen)]
            if rng.random() < MIXED_BATCHES:
                # Words of two messages with both labels: a message that has something of either is read with less certainty.
                share, others = rng.uniform(0.3, 0.7), rng.permutation(chosen)
                pairs = [
                    np.concatenate((_some(rows[a], share, rng), _some(rows[b], 1 - share, rng)))
                    for a, b in zip(chosen, others, strict=True)
                ]
                targets = share * targets + (1 - share) * wanted[torch.from_numpy(others)]
            else:
                pairs = [rows[index] for index in chosen]
            flat = np.concatenate(pairs)
            kept = rng.random(len(flat)) >= FEATURE_DROPOUT
            ends = np.cumsum([len(pair) for pair in pairs])
            before = np.concatenate(([0], np.cumsum(kept)))[np.concatenate(([0], ends))]
            logits = network(
                torch.from_numpy(flat[kept]),
                torch.from_numpy(before[:-1]),
                torch.from_numpy(np.diff(before).astype(np.float32)),
            )
            loss = _loss(logits, targets)
            network.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                schedule.step()
            total += float(loss.detach())
        if log:
            print(f"epoch {epoch + 1}: loss {total / max(1, len(rows) // BATCH):.4f}", flush=True)
    return network


def _some(row: npt.NDArray[np.int64], share: float, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return a random part of a sample's features."""
    return row[rng.random(len(row)) < share]


def _quantised(network: Network, owners: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[np.generic]]:
    table = network.table.weight.detach().numpy().copy()
    table[owners == 0] = 0
    # A few outliers must not cost all others their precision.
    scale = np.maximum(np.quantile(np.abs(table[owners > 0]), 0.9995, axis=0) / 127, 1e-8)
    return {
        "fingerprints": owners,
        "table": np.clip(np.rint(table / scale), -127, 127).astype(np.int8),
        "scale": scale.astype(np.float32),
        "hidden": network.hidden.weight.detach().numpy().T.astype(np.float16),
        "hidden_bias": network.hidden.bias.detach().numpy().astype(np.float16),
        "out": network.out.weight.detach().numpy().T.astype(np.float16),
        "out_bias": network.out.bias.detach().numpy().astype(np.float16),
    }


def _side_by_side(found: list[dict[str, npt.NDArray[np.generic]]]) -> dict[str, npt.NDArray[np.generic]]:
    """Return one network whose logits are the mean of these networks' logits."""
    size = len(found)
    hidden = np.zeros((EMBED * size, HIDDEN * size), dtype=np.float16)
    for i, one in enumerate(found):
        hidden[i * EMBED : (i + 1) * EMBED, i * HIDDEN : (i + 1) * HIDDEN] = one["hidden"]
    joined = {
        name: np.concatenate([one[name] for one in found], axis=axis)
        for name, axis in (("table", 1), ("scale", 0), ("hidden_bias", 0), ("out", 0))
    }
    bias = np.mean([one["out_bias"].astype(np.float32) for one in found], axis=0)
    return joined | {
        "fingerprints": found[0]["fingerprints"],
        "hidden": hidden,
        "out": (joined["out"].astype(np.float32) / size).astype(np.float16),
        "out_bias": bias.astype(np.float16),
    }


def write_weights(path: Path, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
    """Write a compressed weights file; the same arrays give the same bytes."""
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)  # its zip entries carry a fixed date


def report(classifier: Classifier, samples: list[Sample]) -> str:
    """Say per language and family how many held-out samples the most probable class gets right."""
    right: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for sample in samples:
        reading = classifier.read(sample.text, reply=sample.reply, prompt=sample.prompt)
        shares = (reading.neither, reading.praise, reading.complaint)
        found = max(range(3), key=lambda i: shares[i])
        assert sample.label is not None
        for key in (sample.language, sample.family):
            count[key] += 1
            right[key] += found == min(sample.label, 2)
    return "\n".join(f"{key:20} {right[key] / count[key]:.3f} of {count[key]}" for key in sorted(count))


def _with_scope(sample: Sample) -> Sample:
    return (
        replace(sample, scopes=style_scopes(sample.text))
        if sample.family in ("wish", "canonical")
        else sample
    )


def training_samples(count: int) -> list[Sample]:
    """Return all samples of a training run, shuffled: ``count`` generated ones, and what belongs to them."""
    styles = [
        Sample(
            text=text,
            label=WISH if scopes == (LASTING,) else None,
            reply="",
            language="",
            family="style",
            scopes=scopes,
        )
        for text, scopes in style_rows()
    ]
    samples = [
        *(_with_scope(sample) for sample in generate(count, SEED)),
        *labelled_samples(round(LABELLED * count), SEED),
        *scope_samples(round(STATED * count), SEED),
        *exchange_samples(round(EXPLAINED * count), SEED),
        *styles * 3,
    ]
    random.Random(SEED).shuffle(samples)
    return samples


def report_scopes(classifier: Classifier, messages: Sequence[Message]) -> str:
    """Say how the wishes of held-out messages are read: by label, how many as which scope."""
    counts: Counter[tuple[str, str]] = Counter()
    for message in messages:
        wish = read_message(message.text, classifier=classifier).wish
        counts[message.scope, wish.scope if wish else "none"] += 1
    labels = sorted({label for label, _ in counts})
    lines = [f"{'':12}" + "".join(f"{scope:>12}" for scope in SCOPES)]
    lines += [f"{label:12}" + "".join(f"{counts[label, scope]:12}" for scope in SCOPES) for label in labels]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    arguments = parser.parse_args()
    start = time.monotonic()
    samples = training_samples(arguments.samples)
    held_out = list(generate(HELD_OUT, SEED + 1))
    print(f"{len(samples)} samples after {time.monotonic() - start:.0f} s", flush=True)
    write_weights(arguments.output, train(samples, epochs=arguments.epochs))
    print(
        f"{arguments.output}: {arguments.output.stat().st_size} bytes after {time.monotonic() - start:.0f} s"
    )
    trained = Classifier.load(arguments.output)
    print(report(trained, held_out))
    print(report_scopes(trained, held_out_messages(HELD_OUT // 10, SEED + 3)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
