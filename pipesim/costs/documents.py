"""Packed documents: sequences of many documents that do not look at each other, so that attention is uneven.

A sequence of s tokens packed with documents of lengths l has ``sum(l^2) / s^2`` of the causal attention of
one document; microbatches, context-parallel devices and replicas become uneven (arXiv 2503.17924). That
lengths are lognormal is an assumption; a document that does not fit any more is cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipesim.errors import ScenarioError
from pipesim.scenario.resolved import Documents, ResolvedScenario

FloatArray = npt.NDArray[np.float64]
_MOST_AT_ONCE = 2**21
"""Documents drawn at a time: some megabytes."""


@dataclass(frozen=True, slots=True)
class Packing:
    """What the attention of a microbatch depends on.

    Parameters
    ----------
    documents : Documents
        Their lengths.
    seq_length, num_sequences : int
        Tokens of a sequence, and sequences of a microbatch.
    num_shares : int
        Context-parallel groups that have an early and a late chunk of each sequence each; 1 where every
        device has as much of every document.
    is_recomputed : bool
        Whether the backward runs attention's forward again.
    """

    documents: Documents
    seq_length: int
    num_sequences: int
    num_shares: int
    is_recomputed: bool

    @classmethod
    def of(cls, scenario: ResolvedScenario) -> Packing | None:
        """Read it off a scenario; None without documents.

        Raises
        ------
        ScenarioError
            If the scenario has no transformer.
        """
        if scenario.jitter is None or scenario.jitter.documents is None:
            return None
        if scenario.model is None:
            raise ScenarioError(
                "needs a transformer, whose attention it is about", file=scenario.file, key="jitter.documents"
            )
        documents, parallel = scenario.jitter.documents, scenario.parallel
        number = scenario.batch.micro * scenario.model.seq_length / documents.mean_tokens
        if number > _MOST_AT_ONCE:
            raise ScenarioError(
                f"packs a microbatch with {number:.0f} documents; at most {_MOST_AT_ONCE} are allowed",
                file=scenario.file,
                key="jitter.documents.mean",
            )
        # After an exchange of heads a device has all positions of a group's.
        num_shares = {
            "ring": parallel.context,
            "all-gather": parallel.context,
            "ulysses": 1,
            "hierarchical": parallel.context // (parallel.context_inner or 1),
        }[parallel.context_exchange]
        recomputes = {
            "none": False,
            "selective": "core_attn" in scenario.recompute_modules,
            "full": True,
        }[scenario.recompute]
        return cls(
            documents,
            scenario.model.seq_length,
            scenario.batch.micro,
            1 if documents.split == "document" else num_shares,
            recomputes,
        )

    def attention_factors(self, generator: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        """Draw what attention takes, in multiples of what one document a sequence does.

        Parameters
        ----------
        generator : numpy.random.Generator
            Of the draws.
        shape : (int, int)
            Replicas and microbatches.
        """
        num_documents = 3 * self.seq_length / self.documents.mean_tokens + 32
        at_once = max(1, int(_MOST_AT_ONCE / num_documents / self.num_sequences))
        number = shape[0] * shape[1]
        drawn = [
            self.work(self._lengths(generator, min(at_once, number - done)))
            for done in range(0, number, at_once)
        ]
        return np.concatenate(drawn).reshape(shape)

    def _lengths(self, generator: np.random.Generator, number: int) -> FloatArray:
        """Lengths of documents, shape (microbatches, sequences, documents); the last fills the sequence."""
        documents, length = self.documents, float(self.seq_length)
        size = int(3 * length / documents.mean_tokens) + 32
        mu = np.log(documents.mean_tokens) - documents.sigma**2 / 2
        drawn = generator.lognormal(mu, documents.sigma, (number, self.num_sequences, size))
        ends = np.minimum(np.cumsum(np.maximum(1.0, drawn), axis=2), length)
        ends[..., -1] = length
        return np.diff(ends, axis=2, prepend=0.0)

    def work(self, lengths: FloatArray) -> FloatArray:
        """Attention of the device that has most of it, in multiples of one document's even share.

        Parameters
        ----------
        lengths : array, shape (microbatches, sequences, documents)
            Of the documents of each sequence.
        """
        ends = np.cumsum(lengths, axis=2)
        chunk_ends = np.arange(2 * self.num_shares + 1) * self.seq_length / (2 * self.num_shares)
        # Queries up to a position look at so many keys of their own documents, twice.
        begins = ends - lengths
        up_to = [(np.clip(at - begins, 0, lengths) ** 2).sum(axis=(1, 2)) for at in chunk_ends]
        chunks = np.diff(np.stack(up_to, axis=1), axis=1)
        shares = chunks[:, : self.num_shares] + chunks[:, ::-1][:, : self.num_shares]
        most: FloatArray = shares.max(axis=1)
        return self.num_shares * most / (self.num_sequences * float(self.seq_length) ** 2)
