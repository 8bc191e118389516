"""A grouped-query decoder fine-tuned with each loss of GAME-LoRA: coupling, redundancy, truth.

    python -m experiments.game_lora_study FOLDER [--seeds 3] [--steps 300] [--base-steps 4000] [--workers 2] [--json]
    python -m experiments.game_lora_study FOLDER --model MODEL --steps 40 --workers 1 [--arms plain ...]

The last table sets each error against Γ over the arms; ``--figure`` draws Γ over the steps, and G before and after.
The decoder is trained here on half of the facts.  A pretrained one knows none of them; the share of right capitals and
their log-odds then say what is left of the facts that it knew.  Goes on where it stopped.
"""

from __future__ import annotations

import math
import sys
import tempfile
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from time import process_time
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import kendalltau, pearsonr
from torch import Tensor
from torch.utils.data import default_collate

from benchmarks.runner import peak_memory
from diabat.heads import HeadInteractions
from diabat.heads.lora.couplings import normalised
from diabat.huggingface.loading import load_decoder
from diabat.ising import pack_couplings
from diabat.plots import Line, Panel, draw_panel, legend_below, new_figure, save_figure
from experiments import common
from experiments.common import Row, keep, kept, run_script
from experiments.facts import World, deviations, documents, renamed
from experiments.heads.sets import NAMES, WORDS, answers, batches, questions
from experiments.verdicts import gap

LAYERS, HEADS, GROUPS, WIDTH = 4, 8, 2, 128
WORLD = World()
SMALL = World(entities=8, relations=2, values=4, facts=4)
"""The world that a pretrained model is taught."""
ARMS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"losses": []},
    "abt identity, sum": {"losses": ["abt"], "combination": "sum"},
    "abt identity, nash": {"losses": ["abt"]},
    "abt zero, sum": {"losses": ["abt"], "target": "zero", "combination": "sum"},
    "abt zero, nash": {"losses": ["abt"], "target": "zero"},
    "ldb, sum": {"losses": ["ldb"], "combination": "sum"},
    "ldb, nash": {"losses": ["ldb"]},
    "game-lora, sum": {"combination": "sum"},
    "game-lora, nash": {},
    "disagreement": {"losses": ["disagreement"], "combination": "sum"},
    "entropy": {"losses": ["entropy"], "combination": "sum"},
}
"""Options of GAME-LoRA by arm."""
HEAD_VALUES = ("Γ", "Γ'", "TC", "diag", "text")


@dataclass(frozen=True)
class Study:
    """A folder of results, the steps of each fine-tuning, and the pretrained model, or None to train the base here."""

    folder: Path
    steps: int = 300
    model: str | None = None

    @property
    def world(self) -> World:
        """The facts."""
        return WORLD if self.model is None else SMALL

    @cached_property
    def tokenizer(self) -> Any:
        """That of the pretrained model."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.model)

    @cached_property
    def names(self) -> Tensor | None:
        """Tokens of a pretrained model for those of the world: each a word."""
        if self.model is None:
            return None
        tokenizer, world = self.tokenizer, self.world
        people, things = NAMES.split()[: world.entities], WORDS.split()[: world.relations * world.values]
        words = (".", " Note", *(f" {word}" for word in (*people, "likes", "owns", *things)))
        ids = [tokenizer(word).input_ids for word in words]
        assert all(len(tokens) == 1 for tokens in ids)
        return torch.tensor([tokenizer.eos_token_id, tokenizer.bos_token_id, *(one for (one,) in ids)])

    def documents(self, count: int, seed: int) -> list[dict[str, Tensor]]:
        """Documents in the tokens of the model."""
        rows = documents(self.world, count, seed)
        return rows if self.names is None else renamed(rows, self.names)

    def held_out(self) -> dict[str, Tensor]:
        """Documents that no model was trained on."""
        return default_collate(self.documents(256 if self.model is None else 40, 9_000_000))

    def path(self, arm: str, seed: int) -> Path:
        """File of the results of an arm with a seed."""
        return self.folder / f"seed-{seed}" / f"{arm.replace(', ', '-').replace(' ', '-')}.json"


def decoder() -> Any:
    """A Llama, not yet trained; half of the query heads of its first layer begin one or two tokens back.

    The entity and the relation of a statement are then known at its value from the start.  Without this, a decoder of
    this size does not learn to read notes in the time given.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORLD.vocabulary, max_position_embeddings=64, initializer_range=WIDTH**-0.5, pad_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, attention_bias=True, hidden_size=WIDTH,
        intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=GROUPS,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    common.attend_back(model, [1, 2, 1, 2])
    return model


def train_base(study: Study, steps: int) -> None:
    """Train on half of the facts, first on short documents that all have a note; keep the weights and the scores."""
    torch.manual_seed(0)
    model = decoder().train()
    old = np.concatenate([WORLD.pairs("seen")[::2], WORLD.pairs("probabilistic")[::2]])

    def loss(step: int) -> Tensor:
        reading = step < 0.4 * steps
        world = replace(WORLD, noted=1.0, facts=2) if reading else replace(WORLD, noted=0.5)
        return model(**default_collate(documents(world, 64 if reading else 32, 1_000_000 + step, old))).loss

    common.fit(model, lambda step: loss(step).backward(), steps, 1.5e-3)
    save_file(model.state_dict(), study.folder / "base.safetensors")


def adapted(study: Study, seed: int) -> Any:
    """The base model with new adapters, those of the paper."""
    from peft import LoraConfig, get_peft_model

    if study.model is None:
        model = decoder()
        model.load_state_dict(load_file(study.folder / "base.safetensors"))
    else:
        model = load_decoder(study.model)[0]
    torch.manual_seed(seed)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.1, target_modules=targets))


def layer_of(model: Any) -> int:
    """The layer of the losses: that at (19 + 1) / 24 of the depth."""
    return round(20 / 24 * model.config.num_hidden_layers) - 1


def fine_tune(study: Study, arm: str, seed: int) -> str:
    """Fine-tune on all facts, measure, and keep the result."""
    from transformers import PrinterCallback, TrainingArguments

    from diabat.heads import GameOptions, GameTrainer

    warnings.simplefilter("ignore")
    model = adapted(study, seed)
    size, rate = (16, 3e-3) if study.model is None else (4, 1e-3)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            scratch, max_steps=study.steps, per_device_train_batch_size=size, learning_rate=rate, weight_decay=0.1,
            lr_scheduler_type="cosine", warmup_steps=0.02, save_strategy="no", report_to=[], use_cpu=True,
            logging_steps=max(1, study.steps // 60), disable_tqdm=True, seed=seed,
        )  # fmt: skip
        trainer = GameTrainer(
            model, arguments, train_dataset=study.documents(size * study.steps, 2_000_000 + seed),
            game=GameOptions(layers=[layer_of(model)], **ARMS[arm]),
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        if (peak := Path("/proc/self/clear_refs")).exists():
            peak.write_text("5")  # the largest memory is counted anew
        before = process_time()
        trainer.train()
        cost = {"seconds": (process_time() - before) / study.steps, "MB": peak_memory()}
    curve = [[row["step"], row["game/gamma"]] for row in trainer.state.log_history if "game/gamma" in row]
    keep(study.path(arm, seed), scores(study, model) | cost | {"curve": curve})
    return f"{arm}, seed {seed}"


@torch.no_grad()
def scores(study: Study, model: Any) -> Row:
    """Coupling of the heads of the layer on held-out text, its loss, and deviations from the truth."""
    text, layer = study.held_out(), layer_of(model)
    state = HeadInteractions(model, [layer]).measure(text)[layer]
    truth = deviations(model, study.world, study.names)
    of_seen = truth.pop("seen")
    known: Row = {}
    if study.model is None:
        truth = {"old": of_seen[::2], "new": of_seen[1::2], **truth}
    else:
        truth = {"new": of_seen, **truth}
        asked = questions("capitals", "test", 60, 0, study.tokenizer)
        right, odds = answers(model, batches(asked, study.tokenizer, model.config.vocab_size))
        known = {"capitals": right.double().mean().item(), "v capitals": odds.mean().item()}
    covariance, heads = state.covariance, len(state.omega)
    diagonal = of_pairs(diagonal_correlation(covariance, heads))
    return {
        "Γ": state.gamma, "Γ'": state.invariant_gamma, "TC": total_correlation(covariance, heads, state.tokens),
        "diag": sum(diagonal) / len(diagonal), "text": model(**text).loss.item(),
        **{f"E {kind}": values.mean().item() for kind, values in truth.items()},
        **{f"Pr {kind}": (values >= 0.5).double().mean().item() for kind, values in truth.items()},
        **known, "pairs": of_pairs(state.G),
    }  # fmt: skip


def total_correlation(covariance: Tensor, heads: int, tokens: int) -> float:
    r"""TC = ½ (Σ_i log det Σ_i - log det Σ) of the head outputs under a Gaussian (eq. 3), in nats.

    Σ is the covariance over tokens, Σ_i its block of head i.  For n + 1 independent tokens E log det Σ̂ - log det Σ is
    Σ_{k<p} [ψ((n-k)/2) - log(n/2)] of p features, whatever Σ is; its part is subtracted.  Infinite if a feature of a
    head is a linear function of the other heads.
    """
    size = len(covariance) // heads
    maps = []
    for start in range(0, len(covariance), size):
        values, vectors = torch.linalg.eigh(covariance[start : start + size, start : start + size])
        alive = values > 1e-10 * values[-1].clamp_min(0)  # other directions have no variance
        maps.append(vectors[:, alive] / values[alive].sqrt())
    whiten = torch.block_diag(*maps)  # blocks of heads become the identity
    R = whiten.T @ covariance @ whiten
    values, vectors = torch.linalg.eigh((R + R.T) / 2)
    # Fewer different tokens than features, rounded, give negative ones.
    pivots = torch.linalg.cholesky(vectors * (values.clamp_min(0) + 1e-12) @ vectors.T).diagonal().square()
    if bool((pivots < 1e-9).any()):  # outputs are rounded to float32
        return math.inf
    half = (tokens - 1 - torch.arange(len(R), dtype=torch.float64)) / 2
    excess = torch.digamma(half) - math.log((tokens - 1) / 2)
    own = sum(excess[: m.shape[1]].sum() for m in maps)
    return float(-pivots.log().sum() - own + excess.sum()) / 2


def diagonal_correlation(covariance: Tensor, heads: int) -> Tensor:
    """Mean correlation of equal features of two heads, float64 [H, H]; a feature without variance has 0."""
    correlation = normalised(covariance.double())
    blocks = correlation.unflatten(0, (heads, -1)).unflatten(2, (heads, -1))  # [H, d, H, d]
    return blocks.diagonal(dim1=1, dim2=3).mean(-1)


def of_pairs(matrix: Tensor) -> list[float]:
    """Entries above the diagonal."""
    upper = torch.triu_indices(len(matrix), len(matrix), 1)
    return matrix[upper[0], upper[1]].tolist()


def tables(study: Study, seeds: int, arms: Collection[str]) -> common.Titled:
    """Every arm, mean over seeds ± σ; less plain LoRA of the same seed, ± half of the 95 % t interval; errors on Γ."""
    results = {arm: [kept(study.path(arm, seed)) for seed in range(seeds)] for arm in arms}
    before = kept(study.folder / "before.json")
    # Without more different tokens than features of all heads the total correlation is infinite.
    heads = [name for name in HEAD_VALUES if math.isfinite(before[name])]
    truth = [name for name in before if name not in (*HEAD_VALUES, "pairs")]
    for run in (run for runs in results.values() for run in runs):
        run["pairs up"] = fmean(b > a for a, b in zip(before["pairs"], run["pairs"], strict=True))
    for title, names in (("Heads and text", heads), ("Truth", truth)):
        yield f"{title}, before", {name: before[name] for name in names}
        for arm, runs in results.items():
            own = (*names, "pairs up", "seconds", "MB") if names is heads else names
            yield title, {"arm": arm, **{name: _spread(runs, name) for name in own}}
            if seeds > 1 and arm != "plain":
                row = {name: _difference(runs, results["plain"], name) for name in names}
                yield f"{title} less plain LoRA, * if the interval excludes 0", {"arm": arm, **row}
    for row in against_gamma(results, [name for name in truth if name.startswith("E ")]):
        yield "Error against Γ, over arms", row


def against_gamma(runs: Mapping[str, list[Row]], errors: Collection[str]) -> list[Row]:
    """Pearson's r of each error with Γ, and in how many pairs of arms the smaller Γ has the smaller error.

    Pairs with equal values are left out.  A point is an arm, its mean over seeds: Γ is set by the losses of the arm, so
    that its seeds are no points of their own.  Intervals by Fisher's z, p of the share by Kendall's τ; arms that share
    a loss are not independent either, so that intervals and p are too small.  Empty with fewer than four arms.
    """
    if len(runs) < 4:
        return []
    gammas, *columns = ([fmean(run[name] for run in arm) for arm in runs.values()] for name in ("Γ", *errors))
    rows = []
    for name, column in zip(errors, columns, strict=True):
        line, ranks = pearsonr(gammas, column), kendalltau(gammas, column)
        pairs = combinations(zip(gammas, column, strict=True), 2)
        rises = [rise > 0 for a, b in pairs if (rise := (b[0] - a[0]) * (b[1] - a[1]))]
        rows.append({
            "error": name, "arms": len(runs), "r": float(line.statistic),
            "95 % interval": [*map(float, line.confidence_interval())], "p": float(line.pvalue),
            "rising pairs": f"{sum(rises)} of {len(rises)}", "τ": float(ranks.statistic), "p of τ": float(ranks.pvalue),
        })  # fmt: skip
    return rows


def draw(study: Study, seeds: int, arms: Collection[str], path: Path) -> Path:
    """Γ of the training batches over the steps, and G of held-out text before and after; means over the seeds."""
    results = {arm: [kept(study.path(arm, seed)) for seed in range(seeds)] for arm in arms}
    matrices = {"before": kept(study.folder / "before.json")["pairs"]}
    matrices |= {arm: np.mean([run["pairs"] for run in runs], 0) for arm, runs in results.items()}
    figure = new_figure(4 + 2.4 * len(matrices), 3.4)
    first, *others = figure.subplots(1, 1 + len(matrices), width_ratios=(1.6, *(1 for _ in matrices)))
    curves = []
    for look, (arm, runs) in enumerate(results.items()):
        steps, gammas = np.mean([run["curve"] for run in runs], 0).T
        curves.append(Line(steps, gammas, arm, look, style={"marker": ""}))
    draw_panel(first, Panel(curves, settings={"xlabel": "step", "ylabel": "Γ", "title": "Γ over training"}))
    legend_below(figure, [first], len(curves))
    most = max(np.abs(pairs).max() for pairs in matrices.values())
    for axis, (name, pairs) in zip(others, matrices.items(), strict=True):
        heads = (1 + math.isqrt(1 + 8 * len(pairs))) // 2
        G = pack_couplings(torch.tensor(pairs), heads).fill_diagonal_(torch.nan)
        image = axis.imshow(G, cmap="RdBu_r", vmin=-most, vmax=most)
        axis.set(title=f"G, {name}", xlabel="head", xticks=range(heads), yticks=range(heads))
    figure.colorbar(image, ax=others, label="$G_{ij}$", shrink=0.8)
    return save_figure(figure, path)


def _spread(runs: list[Row], name: str) -> str:
    values = [run[name] for run in runs]
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _difference(runs: list[Row], plain: list[Row], name: str) -> str:
    paired = gap(*([run[name] for run in those] for those in (runs, plain)), paired=True)
    if paired is None:  # alike with every seed
        change = runs[0][name] - plain[0][name]
        return f"{change:+.3f} ± 0.000{' *' if change else ''}"
    return f"{paired.difference:+.3f} ± {(paired.high - paired.low) / 2:.3f}{'' if paired.holds(0) else ' *'}"


def main() -> None:
    """Compute what is missing; print the tables."""
    command = common.parser(__doc__, study=True)
    command.add_argument("--steps", type=int, default=300, help="of each fine-tuning")
    command.add_argument("--base-steps", type=int, default=4000, help="of the training of the base")
    command.add_argument("--model", help="a pretrained one, in place of the base")
    command.add_argument("--arms", nargs="+", choices=ARMS, default=[*ARMS], metavar="ARM")
    command.add_argument("--figure", type=Path, help="of Γ and G of all arms that are chosen")
    options = command.parse_args()
    study = Study(options.folder, options.steps, options.model)
    torch.set_num_threads(1)
    names = ("steps", "base_steps") if options.model is None else ("steps", "model")
    common.same_settings(study.folder, {name: getattr(options, name) for name in names})
    if not (study.folder / "before.json").exists():
        if study.model is None:
            train_base(study, options.base_steps)
        keep(study.folder / "before.json", scores(study, adapted(study, seed=0)))
        print("base model", file=sys.stderr)
    runs = [(study, arm, seed) for seed in range(options.seeds) for arm in options.arms]
    missing = [run for run in runs if not study.path(*run[1:]).exists()]
    for done in common.calls(fine_tune, missing, options.workers):
        print(done, file=sys.stderr)
    common.print_tables(tables(study, options.seeds, options.arms), as_json=options.json)
    if options.figure is not None:
        print(f"Figure: {draw(study, options.seeds, options.arms, options.figure)}", file=sys.stderr)


if __name__ == "__main__":
    run_script(main)
