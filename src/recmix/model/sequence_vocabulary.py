"""The vocabularies `Words` and `Smiles`, which convert a text to a sequence of token numbers.

Class 0 is ``<end>``, class 1 is ``<unknown>``. The end token is part of an example, and all values
after it are padding (-1). So an array (N, T) of N examples holds texts of up to T - 1 tokens.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from recmix.errors import ConfigError, DataError, unknown
from recmix.model.smiles_syntax import has_smiles_syntax
from recmix.model.vocabulary import Encoded, Vocabulary

__all__ = ["END", "KEPT", "NOT_SMILES", "PADDING", "UNKNOWN", "UNKNOWN_TOKENS"]
__all__ += ["Smiles", "TokenVocabulary", "Words"]

END, UNKNOWN, PADDING = 0, 1, -1
"""The class of the end token, the class of an unknown token, and the value of padding."""
UNKNOWN_TOKENS = "with tokens that are not in the vocabulary"
"""A name in `Encoded.problems`. Texts with this problem are kept; such tokens become ``<unknown>``."""
NOT_SMILES = "that are not valid SMILES strings"
"""A name in `Encoded.problems`. Texts with this problem are kept."""
KEPT = (UNKNOWN_TOKENS, NOT_SMILES)
"""Problems with which a text is kept. A text with another problem is left out."""
SPECIAL = ("<end>", "<unknown>")
MAX_LENGTH = 100_000
"""Largest number of tokens of an example."""
MAX_TOKENS = 1_000_000
"""Largest number of classes."""
MAX_CHARACTERS = 200
"""Largest number of characters of a token. Longer tokens become ``<unknown>``."""
COVERED = 0.99
"""The default length is chosen so that this share of the training texts is not too long."""
FAR, SHORT = 10, 50
"""Limit of the default length: `FAR` times the median length of the training texts, at least `SHORT`.

All lengths are numbers of tokens without the end token.
"""

_SMILES_TOKEN = re.compile(r"\[[^\[\]\s]*\]|Br|Cl|%\d\d|\S", re.ASCII)


class TokenVocabulary(Vocabulary):
    """Base class of vocabularies that cut a text into tokens and give each token a number.

    This number is the class of the token. Class 0 is ``<end>`` and class 1 is ``<unknown>``.

    Args:
        tokens: the tokens of classes 2, 3, ..., all different.
        length: T, the largest number of tokens of an example, the end token included.
    """

    default_size: ClassVar[int | None] = None
    """Largest number of tokens that `from_texts` takes if its `size` is None. None means all tokens."""

    def __init__(self, tokens: Sequence[str], length: int) -> None:
        self.tokens = (*SPECIAL, *tokens)
        self.length = _whole("length", length, 2, MAX_LENGTH)
        if not 1 <= len(tokens) <= MAX_TOKENS:
            raise ConfigError(f"a vocabulary has 1 to {MAX_TOKENS:,} tokens, got {len(tokens):,}")
        self.shape = (self.length,)
        self.classes = len(self.tokens)
        self._classes = {token: number for number, token in enumerate(self.tokens)} | {"<end>": UNKNOWN}
        if len(self._classes) != self.classes:
            raise DataError("the tokens of a vocabulary must be different, but one occurs twice")

    @classmethod
    @abstractmethod
    def split(cls, text: str) -> list[str]:
        """Cut a text into tokens. The result is an empty list for an empty text."""

    @classmethod
    @abstractmethod
    def join(cls, tokens: Sequence[str]) -> str:
        """Join tokens to a text. This is the inverse of `split`."""

    @classmethod
    def is_valid(cls, tokens: Sequence[str]) -> bool:
        """Whether the tokens of a text have the right syntax. This default is True for all texts."""
        return True

    @classmethod
    def from_texts(
        cls, texts: Iterable[str], length: int | None = None, size: int | None = None
    ) -> Self:
        """Make the vocabulary of the training texts.

        It contains the most frequent tokens. Equally frequent tokens are taken in alphabetical order.

        Args:
            texts: the training texts.
            length: T, the largest number of tokens of an example, the end token included. By default,
                T is as small as possible so that 99 % of the texts fit. But T - 1 is at most 10 times
                the median length of the texts, or 50 if this is larger.
            size: the largest number of tokens to take. By default 10,000 for words, and no limit for
                SMILES strings.
        """
        if size is None:
            size = cls.default_size
        else:
            _whole("vocabulary_size", size, 1, MAX_TOKENS)
        counts: Counter[str] = Counter()
        lengths: list[int] = []
        for text in texts:
            found = cls.split(text)
            counts.update(found)
            if found:
                lengths.append(len(found))
        for token in [token for token in counts if not _is_token(token)] + list(SPECIAL):
            del counts[token]
        if not counts:
            raise DataError(f"there is no training text with a token for a vocabulary of {cls.kind}")
        ordered = sorted(counts, key=lambda token: (-counts[token], token))
        limit = MAX_TOKENS if size is None else size
        if length is None:
            usual, most = np.quantile(lengths, (0.5, COVERED), method="inverted_cdf")
            length = 1 + int(min(most, max(SHORT, FAR * usual), MAX_LENGTH - 1))
        return cls(ordered[:limit], length)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Convert texts to token numbers, float32 (N, T), with an end token (0) and padding (-1).

        Empty texts and texts of more than T - 1 tokens are left out; N is the number of the other texts.
        Tokens that are not in the vocabulary become ``<unknown>``.
        """
        rows: list[int] = []
        kept: list[int] = []
        lengths: list[int] = []
        problems: Counter[str] = Counter()
        number = self._classes.get
        for place, text in enumerate(texts):
            found = self.split(text)
            if not found:
                problems["empty"] += 1
            elif len(found) >= self.length:
                problems[f"longer than {self.length - 1} tokens"] += 1
            else:
                classes = [number(token, UNKNOWN) for token in found]
                if UNKNOWN in classes:
                    problems[UNKNOWN_TOKENS] += 1
                if not self.is_valid(found):
                    problems[NOT_SMILES] += 1
                rows += classes
                kept.append(place)
                lengths.append(len(found))
        x = np.full((len(kept), self.length), PADDING, np.float32)
        ends = np.array(lengths, np.int64)
        places = np.arange(self.length)
        x[places < ends[:, None]] = rows
        x[places == ends[:, None]] = END
        return Encoded(x, np.array(kept, np.int64), dict(problems))

    def decode(self, x: np.ndarray) -> list[str]:
        """Convert N examples of token numbers, (N, T), to texts.

        A text ends before the end token or the first padding value. The text is "" if a value before
        this place is not a token number.
        """
        return [self._text(row) for row in self._rows(x)]

    def to_json(self) -> dict[str, Any]:
        """The tokens and the number of positions T: ``{"length": T, "tokens": [...]}``."""
        return {"length": self.length, "tokens": list(self.tokens)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Make the vocabulary again from the result of `to_json`. Other content raises a `DataError`."""
        for name in stored:
            if name not in ("kind", "length", "tokens"):
                raise DataError(
                    unknown("field of a vocabulary", str(name), ("kind", "length", "tokens"))
                )
        tokens, length = stored.get("tokens"), stored.get("length")
        if not isinstance(tokens, list) or tuple(tokens[: len(SPECIAL)]) != SPECIAL:
            raise DataError(f"the tokens of a vocabulary must be a list that begins with {SPECIAL}")
        rest = tokens[len(SPECIAL) :]
        if len(rest) > MAX_TOKENS:
            raise DataError(f"a vocabulary has at most {MAX_TOKENS:,} tokens, got {len(rest):,}")
        for token in rest:
            if not isinstance(token, str) or not _is_token(token) or cls.split(token) != [token]:
                raise DataError(
                    f"{token!r:.80} cannot be a token of a vocabulary of {cls.kind}; expected text of 1 "
                    f"to {MAX_CHARACTERS} characters that is one token"
                )
        try:
            return cls(rest, length)  # type: ignore[arg-type]  # checked there
        except ConfigError as error:
            raise DataError(f"wrong content of a vocabulary: {error}") from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}(classes={self.classes}, length={self.length})"

    def _text(self, row: np.ndarray) -> str:
        with np.errstate(invalid="ignore"):  # NaN is refused below
            classes = row.astype(np.int64)
        ends = np.flatnonzero((row == END) | (row < 0))
        stop = int(ends[0]) if len(ends) else len(row)
        shown = classes[:stop]
        if not ((row[:stop] == shown) & (shown < self.classes)).all():
            return ""
        return self.join([self.tokens[number] for number in shown])


class Words(TokenVocabulary):
    """A vocabulary that cuts texts into words at white space.

    The arguments are those of `TokenVocabulary`.

    >>> words = Words.from_texts(["the cat sat", "the dog"], length=5)
    >>> words.tokens
    ('<end>', '<unknown>', 'the', 'cat', 'dog', 'sat')
    >>> encoded = words.encode(["the cat barks", ""])
    >>> encoded.x
    array([[ 2.,  3.,  1.,  0., -1.]], dtype=float32)
    >>> encoded.problems
    {'with tokens that are not in the vocabulary': 1, 'empty': 1}
    >>> words.decode(encoded.x)
    ['the cat <unknown>']
    """

    kind = "words"
    default_size = 10_000

    @classmethod
    def normal_forms(cls, texts: Sequence[str]) -> list[str]:
        """Each text with exactly one space between words."""
        return [" ".join(text.split()) for text in texts]

    @classmethod
    def split(cls, text: str) -> list[str]:
        """Cut a text at white space."""
        return text.split()

    @classmethod
    def join(cls, tokens: Sequence[str]) -> str:
        """Join words with spaces between them."""
        return " ".join(tokens)


class Smiles(TokenVocabulary):
    """A vocabulary that cuts SMILES strings of molecules into chemical tokens.

    A token is an atom in brackets such as ``[C@@H]``, ``Br``, ``Cl``, a ring number such as ``%12``, or
    any other character. A name after the string, separated by white space, is ignored. `encode` keeps
    strings with a wrong syntax, but counts them as problems. `decode` returns "" for an example with an
    unknown token, because it is no molecule. The arguments are those of `TokenVocabulary`.

    >>> Smiles.split("C[C@@H](Cl)c1ccccc1 name")
    ['C', '[C@@H]', '(', 'Cl', ')', 'c', '1', 'c', 'c', 'c', 'c', 'c', '1']
    >>> smiles = Smiles.from_texts(["CCO", "CCl"])
    >>> smiles.tokens, smiles.shape
    (('<end>', '<unknown>', 'C', 'Cl', 'O'), (4,))
    >>> smiles.decode(smiles.encode(["ClCO", "CN"]).x)
    ['ClCO', '']
    >>> smiles.encode(["C(C"]).problems["that are not valid SMILES strings"]
    1
    """

    kind = "smiles"
    molecules = True

    @classmethod
    def split(cls, text: str) -> list[str]:
        """Cut a SMILES string into chemical tokens, such as ``C``, ``Cl`` and ``[C@@H]``."""
        first = text.split(None, 1)
        return _SMILES_TOKEN.findall(first[0]) if first else []

    @classmethod
    def is_valid(cls, tokens: Sequence[str]) -> bool:
        """Whether tokens have the syntax of a SMILES string; see `has_smiles_syntax`."""
        return has_smiles_syntax(tokens)

    @classmethod
    def join(cls, tokens: Sequence[str]) -> str:
        """Join tokens to a SMILES string, or return "" if a token is ``<unknown>``."""
        return "" if SPECIAL[UNKNOWN] in tokens else "".join(tokens)


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise ConfigError(f"{name} must be a whole number from {low} to {high:,}, got {value!r:.80}")
    return int(value)


def _is_token(token: str) -> bool:
    """Whether a text may be a token: it is not empty, not too long, and can be written as UTF-8."""
    return 0 < len(token) <= MAX_CHARACTERS and not any("\ud800" <= c <= "\udfff" for c in token)
