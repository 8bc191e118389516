r"""NeuroGame attention: tokens as players of a game and as spins of an Ising model (arXiv:2603.18761).

Value vectors V_i = W_v x_i of each head define the game v(C) = f(‖Σ_{i ∈ C} V_i‖).  Its Shapley values φ and Banzhaf
indices β, normalised and mixed by a gate λ, are external fields; its pair interactions are couplings:

    J_i = λ_i φ_i/‖φ‖₁ + (1 - λ_i) β_i/‖β‖₁,   λ_i = σ(w·x_i + b),   H(S) = -Σ_i J_i s_i - Σ_{i<j} J_ij s_i s_j

and the attention weight of a token is its marginal α_i = P(s_i = +1) under P ∝ exp(-H/γ).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from diabat.attention.bridge import outside_graphs
from diabat.attention.games import Estimate, NormGame, sample_banzhaf, sample_shapley
from diabat.attention.games.estimate import Temperature
from diabat.attention.games.sampling import sample_halves
from diabat.attention.games.value_games import NONLINEARITIES
from diabat.attention.head_axis import split_heads
from diabat.attention.layer import (
    IsingLayer,
    check_heads,
    check_sequences,
    require_within_limits,
    within_limits,
)
from diabat.checks import check_choice, check_count, check_number, check_positive
from diabat.ising import Ising, without_autocast
from diabat.ising.checks import check_finite
from diabat.samplers.base import Sampler
from diabat.samplers.call_checks import refuse_trace
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.folding import behind_transforms
from diabat.samplers.registry import sampler as build_sampler
from diabat.samplers.seeds import draw_seed

MODES = ("h+J", "h", "uniform")
PAPER_MEAN_FIELD = {"damping": 0.7, "max_iterations": 25, "tolerance": 1e-4}


@dataclass(frozen=True, eq=False)
class NeuroGameExplanation:
    """Quantities behind one output of the layer; entries of padding are 0.

    Attributes:
        alpha: α_i = P(s_i = +1), [B, H, T].
        expected_active: Σ_i α_i, the expected number of active tokens, [B, H].
        fields: J_i, before the division by γ, [B, H, T].
        interactions: J_ij, before the division by γ, [B, H, T, T].  Fields or interactions that the mode of the layer
            omits are zero.
        shapley: φ_i before normalisation, [B, H, T], with standard errors and effective numbers of samples.
        banzhaf: β_i, likewise.
        pairs: The estimate of the interactions, [B, H, T, T].
        gate: λ_i, [B, H, T].
        temperature: γ of each head, [H].
        residual: max_i |P_i - σ(2 (J_i + Σ_j J_ij m_j)/γ)|, m = 2P - 1, [B, H]: how far α is from the naive mean-field
            equations.  For ``mean_field`` it measures convergence; exact marginals do not satisfy these equations.
        info: ``info`` of the sampler for the whole batch (for ``mean_field``: ``converged``, ``iterations``).
        num_coalitions: K.
        seed: Seed of coalitions and reads; passing it to the layer repeats the result.
    """

    alpha: Tensor
    expected_active: Tensor
    fields: Tensor
    interactions: Tensor
    shapley: Estimate
    banzhaf: Estimate
    pairs: Estimate
    gate: Tensor
    temperature: Tensor
    residual: Tensor
    info: Mapping[str, Any]
    num_coalitions: int
    seed: int


class NeuroGameAttention(IsingLayer):
    r"""Multi-head NeuroGame attention: z_h = Σ_i α_i V_i of each head, concatenated and projected by W_O.

    Each head has its own W_v, gate and temperature.  Output ``pooled`` is [B, D], the paper's.  Output ``tokens`` is
    [B, T, D] with α_i V_i in place of the sum, for use inside a stack.  Its sum over T is the pooled output
    (without bias), and tokens act on each other through α alone.  It is not causal: every token acts on every α.

    Args:
        embed_dim: D, divisible by ``num_heads``.
        num_heads: H.
        sampler: Backend of the marginals, or its name; None for mean field as in the paper, damping 0.7, at most 25
            iterations, tolerance 1e-4 (``diabat.sampler("mean_field")`` iterates further).
        gradient: Estimator, see :func:`diabat.spin_probabilities`.
        temperature: γ at the start; also that of the Gibbs weights.
        learn_temperature: Train log γ of each head; otherwise γ is constant.
        weighting: ``gibbs`` (the paper's estimators) or ``uniform`` (unbiased), see
            :mod:`diabat.attention.games.sampling`.
        num_coalitions: K in training mode.
        eval_coalitions: K in evaluation mode.
        eval_seed: Seed of coalitions and reads in evaluation mode, so that equal inputs have equal outputs; None draws
            one as in training.
        f: ``identity``, ``relu`` or ``tanh``.
        normalisation: Of φ and β: ``l1`` (Algorithm 1), ``sum`` (section 3.4, Σ φ; it may vanish or change sign) or
            ``none``.  All-zero values stay zero.
        output: ``pooled`` or ``tokens``.
        mode: ``h+J`` (the paper's), or a control: ``h`` without couplings, α_i = σ(2 J_i/γ), or ``uniform`` without
            fields as well, α_i = 1/2.  The controls do not call the sampler.
        dropout: Of α.
        bias: Bias of W_O.
        num_reads: Reads per problem for sampling backends.

    Attributes:
        value: W_v of all heads, without bias, so that a sum of values is the value of a sum.
        gate: w and b of all heads.
        output_projection: W_O.

    Raises:
        ValueError: If an option is out of range.
        UnsupportedError: If the sampler does not support different couplings for every problem, or the estimator.
    """

    log_temperature: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        sampler: Sampler | str | None = None,
        *,
        gradient: str = "auto",
        temperature: float = 0.25,
        learn_temperature: bool = False,
        weighting: Literal["gibbs", "uniform"] = "gibbs",
        num_coalitions: int = 15,
        eval_coalitions: int = 25,
        eval_seed: int | None = 0,
        f: str = "identity",
        normalisation: str = "l1",
        output: str = "pooled",
        mode: str = "h+J",
        dropout: float = 0.0,
        bias: bool = False,
        num_reads: int | None = None,
    ) -> None:
        super().__init__()
        embed_dim, num_heads = check_heads(embed_dim, num_heads)
        num_coalitions = check_count("num_coalitions", num_coalitions)
        eval_coalitions = check_count("eval_coalitions", eval_coalitions)
        check_positive("temperature", temperature)
        check_number("dropout", dropout, "[0, 1]")
        for name, value, known in (
            ("weighting", weighting, ("gibbs", "uniform")),
            ("f", f, NONLINEARITIES),
            ("normalisation", normalisation, ("l1", "sum", "none")),
            ("output", output, ("pooled", "tokens")),
            ("mode", mode, MODES),
        ):
            check_choice(name, value, known)
        self.embed_dim, self.num_heads, self.weighting = embed_dim, num_heads, weighting
        self.num_coalitions, self.eval_coalitions = num_coalitions, eval_coalitions
        self.eval_seed = None if eval_seed is None else draw_seed(eval_seed)
        self.f, self.normalisation, self.output, self.mode = f, normalisation, output, mode
        chosen = build_sampler("mean_field", **PAPER_MEAN_FIELD) if sampler is None else sampler
        self.use_sampler(chosen, gradient=gradient, num_reads=num_reads)
        self.value = nn.Linear(embed_dim, embed_dim, bias=False)
        self.gate = nn.Linear(embed_dim, num_heads)
        self.output_projection = nn.Linear(embed_dim, embed_dim, bias=bias)
        # Fields are normalised, couplings grow with W_v.  With this standard deviation couplings stay below the
        # strength at which mean field on inputs of unit variance has several fixed points, (Σ_j J_ij²)^½ ≈ γ/2.
        nn.init.normal_(self.value.weight, std=temperature / (8 * math.sqrt(embed_dim)))
        self.dropout = nn.Dropout(dropout)
        start = torch.full((num_heads,), math.log(temperature))
        if learn_temperature:
            self.log_temperature = nn.Parameter(start)
        else:
            self.register_buffer("log_temperature", start)

    @property
    def temperature(self) -> Tensor:
        """γ of each head, [H]."""
        return self.log_temperature.exp()

    @outside_graphs  # coalitions are drawn by numpy
    def forward(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None = None,
        need_explanation: bool = False,
        seed: int | None = None,
    ) -> Tensor | tuple[Tensor, NeuroGameExplanation]:
        """Attend.

        Args:
            x: Token embeddings [B, T, D].
            key_padding_mask: bool [B, T], True where a token is padding (as in torch.nn.MultiheadAttention).  Padding
                is neither player nor spin, and the coalitions of a sequence do not depend on it.
            need_explanation: Also return the explanation; its tensors are part of the autograd graph.
            seed: Seed of coalitions and reads.  None uses ``eval_seed`` in evaluation mode, and draws a seed from
                torch's global generator, which ``torch.manual_seed`` sets, in training mode.

        Returns:
            [B, D] or [B, T, D], or a pair of it and the explanation.  A sequence without tokens gets zeros (plus the
            bias).

        Raises:
            ValueError: If a shape or dtype is wrong, or a token holds NaN, infinity or numbers too large to be squared.
            UnsupportedError: If a sequence has more tokens than the sampler accepts spins, or Σ 2^n over sequences and
                heads is more than it enumerates in one call.  This is checked before anything is computed.
        """
        refuse_trace()
        if torch.compiler.is_exporting():
            reason = "NeuroGameAttention is not exported, since it reads values of its inputs."
            raise UnsupportedError("torch.export", reason)
        check_sequences(x, self.value, self.embed_dim, key_padding_mask)
        self._check_lengths(x, key_padding_mask)
        x, V, players = self._values(x, key_padding_mask)
        used_seed = draw_seed(self._fixed_seed if seed is None else seed)
        if self.mode == "uniform" and not need_explanation:
            return self._combine(self.dropout(players.to(V) / 2), V)
        temperature = self.temperature
        phi, beta, pairs = self._indices(V, players, temperature, used_seed, need_explanation)
        gate = torch.sigmoid(self.gate(x)).transpose(1, 2).to(phi.value) * players
        fields, interactions = self._terms(phi.value, beta.value, pairs, gate)
        h, J = token_ising(fields, interactions, temperature.to(fields))
        alpha = self._marginals(h, J, players, used_seed)
        out = self._combine(self.dropout(alpha).to(V), V)
        if not need_explanation:
            return out
        assert pairs is not None
        return out, NeuroGameExplanation(
            alpha=alpha,
            expected_active=alpha.sum(-1),
            fields=fields,
            interactions=interactions,
            shapley=phi,
            banzhaf=beta,
            pairs=pairs,
            gate=gate,
            temperature=temperature,
            residual=mean_field_residual(h, J, alpha, players),
            info=self._sampler_info(h, J, players, used_seed),
            num_coalitions=phi.num_samples,
            seed=used_seed,
        )

    @torch.no_grad()
    def explain(
        self, x: Tensor, key_padding_mask: Tensor | None = None, seed: int | None = None
    ) -> NeuroGameExplanation:
        """Explain the output for x, without gradients; arguments and errors as in :meth:`forward`."""
        answer = self.forward(x, key_padding_mask, need_explanation=True, seed=seed)
        return answer[1]  # type: ignore[return-value]  # a pair, as need_explanation is set

    @torch.no_grad()
    def estimates(
        self, x: Tensor, key_padding_mask: Tensor | None = None, seed: int | None = None
    ) -> tuple[Estimate, Estimate, Estimate]:
        """Compute φ, β [B, H, T] and J_ij [B, H, T, T] as in :meth:`explain`, without calling the sampler."""
        check_sequences(x, self.value, self.embed_dim, key_padding_mask)
        _, V, players = self._values(x, key_padding_mask)
        used_seed = draw_seed(self._fixed_seed if seed is None else seed)
        phi, beta, pairs = self._indices(V, players, self.temperature, used_seed, diagnostics=True)
        assert pairs is not None
        return phi, beta, pairs

    def _values(self, x: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tokens with padding set to 0; V [B, H, T, D/H]; and which tokens are players, [B, H, T]."""
        for name, tensor in (("x", x), ("key_padding_mask", padding)):
            if tensor is not None:
                behind_transforms(name, tensor)
        tokens = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        if padding is not None:
            tokens = ~padding
            x = torch.where(tokens[..., None], x, 0)
        check_finite("x", x)
        V = split_heads(self.value(x), self.num_heads)
        return x, V, tokens[:, None].expand(V.shape[:-1])

    def _indices(
        self, V: Tensor, players: Tensor, temperature: Tensor, seed: int, diagnostics: bool
    ) -> tuple[Estimate, Estimate, Estimate | None]:
        """Estimate φ, β [B, H, T] and, if it is used, J_ij [B, H, T, T]; β and J_ij share their coalitions."""
        with without_autocast(V):
            game = NormGame(V, self.f, players, name="x")
            options: dict[str, Any] = {"weighting": self.weighting, "temperature": temperature}
            options |= {"seed": seed, "diagnostics": diagnostics}
            count = self.num_coalitions if self.training else self.eval_coalitions
            phi = sample_shapley(game, count, **options)
            if self.mode == "h+J" or diagnostics:
                return phi, *sample_halves(game, count, **options)
            return phi, sample_banzhaf(game, count, **options), None

    def _terms(
        self, phi: Tensor, beta: Tensor, pairs: Estimate | None, gate: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute J_i [B, H, T] and J_ij [B, H, T, T]; terms that the mode omits are zero."""
        fields = gate * self._normalised(phi) + (1 - gate) * self._normalised(beta)
        if self.mode == "h+J":
            assert pairs is not None
            return fields, pairs.value
        if self.mode == "uniform":
            fields = torch.zeros_like(fields)
        return fields, fields.new_zeros(*fields.shape, fields.shape[-1])

    def _normalised(self, index: Tensor) -> Tensor:
        if self.normalisation == "none":
            return index
        total = (index.abs() if self.normalisation == "l1" else index).sum(-1, keepdim=True)
        return index / total.masked_fill(total == 0, torch.inf)

    def _marginals(self, h: Tensor, J: Tensor, players: Tensor, seed: int) -> Tensor:
        """α, [B, H, T]; 0 for padding."""
        if not bool(players.any()):
            return h * 0
        if self._last is not None:  # one query of each head
            one = (h[:, :, None], J[:, :, None], players[:, :, None])
            self._record("game", lambda: Ising(*one, check=False).detach())
        if self.mode != "h+J":
            return torch.where(players, torch.sigmoid(2 * h), 0)
        ising = Ising(h, J, players, check=False)
        return self._bridge.probabilities(ising, _sampler_seed(seed) if self._bridge.draws else None)

    @torch.no_grad()
    def _sampler_info(self, h: Tensor, J: Tensor, players: Tensor, seed: int) -> Mapping[str, Any]:
        if self.mode != "h+J" or not bool(players.any()):
            return {}
        ising = Ising(h, J, players, check=False).detach()
        return self.sampler.moments(ising, num_reads=self.num_reads, seed=_sampler_seed(seed)).info

    def _combine(self, alpha: Tensor, V: Tensor) -> Tensor:
        weighted = alpha[..., None] * V  # [B, H, T, D/H]
        if self.output == "pooled":
            return self.output_projection(weighted.sum(-2).flatten(-2))
        return self.output_projection(weighted.transpose(1, 2).flatten(-2))

    def _check_lengths(self, x: Tensor, padding: Tensor | None) -> None:
        batch, longest, _ = x.shape
        # Most batches are small enough for any padding; the mask is then not read.
        if self.mode != "h+J" or within_limits(self.sampler, batch * self.num_heads, longest):
            return
        lengths = torch.full((batch,), longest) if padding is None else (~padding).sum(-1)
        require_within_limits(self.sampler, lengths, self.num_heads, "x: sampler")

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        return (
            f"num_heads={self.num_heads}, mode={self.mode!r}, gradient={self.gradient!r}, "
            f"weighting={self.weighting!r}, f={self.f!r}, "
            f"coalitions={self.num_coalitions}/{self.eval_coalitions}, output={self.output!r}"
        )


def token_ising(fields: Tensor, interactions: Tensor, temperature: Temperature) -> tuple[Tensor, Tensor]:
    r"""Fields h and couplings J of P(s) ∝ exp(Σ h s + Σ_{j<k} J s s) for the paper's Hamiltonian.

    Eq. 10 and 12: P(S) ∝ exp(-H(S)/γ), H(S) = -Σ J_i s_i - Σ_{i<j} J_ij s_i s_j, s_i = ±1.  Hence h_i = J_i/γ and
    J = J_ij/γ, with no factor and no sign: eq. 20, P(s) = e^{hs/γ}/(e^{h/γ} + e^{-h/γ}), confirms that spins are ±1 and
    not 0/1, so that one token alone has α = σ(2 J_1/γ).

    Of J_i, [*batch, n], and J_ij, symmetric with zero diagonal, [*batch, n, n]; γ > 0 is a number or broadcasts to the
    batch.
    """
    if isinstance(temperature, Tensor):
        return fields / temperature[..., None], interactions / temperature[..., None, None]
    return fields / temperature, interactions / temperature


def mean_field_residual(h: Tensor, J: Tensor, alpha: Tensor, visible: Tensor) -> Tensor:
    """max_i |α_i - σ(2 (h_i + Σ_j J_ij m_j))| with m = 2α - 1 over the visible spins, detached, [*batch]."""
    h, J, alpha = h.detach(), J.detach(), alpha.detach()
    m = torch.where(visible, 2 * alpha - 1, 0)
    update = torch.sigmoid(2 * (h + (J @ m[..., None])[..., 0]))
    return torch.where(visible, (update - alpha).abs(), 0).amax(-1)


def _sampler_seed(seed: int) -> int:
    """Derive the seed of the reads, so that they do not reuse the random numbers of the coalitions."""
    state = np.random.SeedSequence(seed, spawn_key=(3,)).generate_state(1, np.uint64)
    return int(state[0] >> 1)  # seeds are below 2^63
