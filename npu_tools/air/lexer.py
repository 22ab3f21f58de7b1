"""MLIR's tokens, by one regular expression that never looks back.

xDSL's own lexer takes exponential time on a string that is never closed.
"""

from __future__ import annotations

import re
from typing import Final

from xdsl.utils.exceptions import ParseError
from xdsl.utils.lexer import Span
from xdsl.utils.mlir_lexer import KIND_BY_PUNCTUATION_SPELLING, MLIRLexer, MLIRToken, MLIRTokenKind, StringLiteral

_STRING: Final = r'"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"'
_WORD: Final = r"[A-Za-z_][A-Za-z0-9_$.]*+"
_SUFFIX: Final = r"(?:[0-9]++|[A-Za-z$._-][A-Za-z0-9$._-]*+)"

_BLANK: Final = re.compile(r"(?:[ \t\r\n\f\v]++|//[^\n]*+)*+")
_TOKEN: Final = re.compile(
    rf"""
    (?P<BARE_IDENT>{_WORD})
  | (?P<punctuation>\#-\}}|\{{-\#|->|\.\.\.|[-:,()\}}\[\]<>=+/*?|\{{])
  | (?P<PERCENT_IDENT>%{_SUFFIX})
  | (?P<FLOAT_LIT>[0-9]++\.[0-9]*+(?:[eE][+-]?[0-9]++)?)
  | (?P<INTEGER_LIT>0x[0-9a-fA-F]++|[0-9]++)
  | (?P<HASH_IDENT>\#{_SUFFIX})
  | (?P<EXCLAMATION_IDENT>!{_SUFFIX})
  | (?P<CARET_IDENT>\^{_SUFFIX})
  | (?P<AT_IDENT>@(?:{_WORD}|{_STRING}))
  | (?P<STRING_LIT>{_STRING})
    """,
    re.VERBOSE,
)

_UNFINISHED: Final = {
    '"': "this string is never closed, or holds an escape that MLIR does not know",
    "@": "a name or a quoted string was expected behind '@'",
    "%": "a name or a number was expected behind '%'",
    "#": "a name was expected behind '#'",
    "!": "a name was expected behind '!'",
    "^": "a block name was expected behind '^'",
    ".": "a single '.' means nothing here",
}


class AirLexer(MLIRLexer):
    """The tokens of one text."""

    def lex(self) -> MLIRToken:
        """The next token, and its place."""
        text = self.input.content
        blank = _BLANK.match(text, self.pos)
        start = self.pos if blank is None else blank.end()
        found = _TOKEN.match(text, start)
        if found is None:
            if start >= len(text):
                self.pos = start + 1
                return MLIRToken(MLIRTokenKind.EOF, Span(start, start, self.input))
            message = _UNFINISHED.get(text[start], f"the character {text[start]!r} means nothing here")
            raise ParseError(Span(start, start + 1, self.input), message)
        self.pos = found.end()
        group = found.lastgroup
        if group == "punctuation":
            return MLIRToken(KIND_BY_PUNCTUATION_SPELLING[found.group()], Span(start, self.pos, self.input))
        if group == "STRING_LIT":
            return _string(StringLiteral(start, self.pos, self.input))
        assert group is not None
        return MLIRToken(MLIRTokenKind[group], Span(start, self.pos, self.input))


def _string(literal: StringLiteral) -> MLIRToken:
    """A string, or bytes where its escapes leave ASCII."""
    ascii_or_plain = "\\" not in literal.text or literal.bytes_contents.isascii()
    return MLIRToken(MLIRTokenKind.STRING_LIT if ascii_or_plain else MLIRTokenKind.BYTES_LIT, literal)
