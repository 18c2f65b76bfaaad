"""Characters that can be taken for others, and names that can be taken for each other.

A name may have letters of any script.  A reader, also a model, takes a Cyrillic letter for a Latin
one, a fullwidth bar for a bar, and a curly quote for the end of a quotation.  So a word that is
shown keeps its letters, marks and digits if they are of one script; other characters are spelled
out.  Two names are one name if they differ only in such characters, in case or in punctuation.

Few texts need this module: it is imported for a character that is not ASCII, and for the name of an
agent that may be a reserved one.
"""

from __future__ import annotations

import re
from unicodedata import category, name, normalize

from interlock.core.validate import CONFUSED, RESERVED, RESERVED_PREFIXES, UNSEEN

_ALIKE = {
    "a": "\u0430\u0251\u03b1",
    "b": "\u042c\u0432\u0299",
    "c": "\u0441\u03f2\u1d04",
    "d": "\u0501",
    "e": "\u0435\u04bd\u03b5",
    "g": "\u0261\u0581",
    "h": "\u04bb\u0570\u043d\u029c",
    "i": "\u0456\u0269\u03b9\u0131",
    "j": "\u0458\u03f3",
    "k": "\u043a\u03ba\u1d0b",
    "l": "\u04cf\u01c0\u026d",
    "m": "\u043c\u1d0d",
    "n": "\u0578\u03b7\u0274",
    "o": "\u043e\u03bf\u0585\u03c3\u1d0f",
    "p": "\u0440\u03c1",
    "q": "\u051b\u0566",
    "r": "\u0280",
    "s": "\u0455\ua731\u0282",
    "t": "\u0442\u03c4\u1d1b",
    "u": "\u03c5\u057d\u1d1c",
    "v": "\u0475\u03bd\u1d20",
    "w": "\u051d\u03c9\u0461\u1d21",
    "x": "\u0445\u03c7",
    "y": "\u0443\u04af\u03b3\u028f",
    "z": "\u1d22",
    ":": "\u2236\ua789\u02d0\u02f8\u05c3",
    "/": "\u2044\u2215\u29f8\u2571",
}
"""Characters of other scripts, and rare Latin ones, by the ASCII character that they look like."""
_TWINS = str.maketrans({sign: plain for plain, signs in _ALIKE.items() for sign in signs})
_RARE = frozenset(sign for sign in map(chr, _TWINS) if name(sign).startswith("LATIN"))
"""Latin letters that look like those of ASCII."""
_WORD = re.compile(r"[^\W\d_]+")
_DASHES = "\N{EN DASH}\N{EM DASH}"


def spelled_out(text: str) -> str:
    """The text with each character spelled out that does not print, or can be taken for another."""
    doubtful = {at for found in _WORD.finditer(text) for at in _doubtful(found)}
    return "".join(
        [
            sign if sign.isascii() and sign.isprintable() else _spelled(sign, at in doubtful)
            for at, sign in enumerate(text)
        ]
    )


def _spelled(sign: str, doubtful: bool) -> str:
    shows = not doubtful and (sign in _DASHES or _is_of_words(sign))
    return sign if shows else ascii(sign)[1:-1]


def _is_of_words(sign: str) -> bool:
    """Whether it is a letter, a mark or a digit that is no variant of another character."""
    if category(sign) not in ("Ll", "Lu", "Lo", "Lt", "Mc", "Mn", "Nd"):
        return False
    unseen = any(span[0] <= sign <= span[1] for span in UNSEEN)
    alone = name(sign, "").startswith(("COMBINING", "LATIN LETTER"))
    return not unseen and not alone and normalize("NFKC", sign) == sign


def _doubtful(word: re.Match[str]) -> range | tuple[int, ...]:
    """The places of a word's letters that a reader may take for Latin ones."""
    letters = word[0]
    if letters.isascii():
        return ()
    scripts = {name(sign, "?").partition(" ")[0] for sign in letters}
    alike = letters.lower().translate(_TWINS).isascii()
    if alike or ("LATIN" in scripts and len(scripts) > 1):
        return range(*word.span())
    return tuple(at for at, sign in enumerate(letters, word.start()) if sign.lower() in _RARE)


def is_reserved(agent: str) -> bool:
    """Whether an agent would be taken for Interlock, the system, the user, or a person.

    Case, look-alikes and punctuation make no difference.  What begins with such a name and a slash
    or a colon reads as a part of it.
    """
    plain = normalize("NFKC", agent).casefold().translate(_TWINS)
    letters = "".join([each for each in normalize("NFKD", plain) if category(each)[0] != "M"])
    parts = [re.findall(r"[^\W_]+", part) for part in re.split("[/:]", letters)]
    words = [each.translate(CONFUSED) for each in next(filter(None, parts), [])]
    reserved = {each.translate(CONFUSED) for each in RESERVED}
    bare = re.sub(r"[^\w:/]|_", "", letters.translate(CONFUSED)).lstrip(":/")
    prefixes = tuple([each.translate(CONFUSED) for each in RESERVED_PREFIXES])
    return bare.startswith(prefixes) or (bool(words) and reserved.issuperset(words))
