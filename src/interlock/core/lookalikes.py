"""Characters that can be taken for others, and names that can be taken for each other.

A name may have letters of any script.  A reader, also a model, cannot tell a Cyrillic letter from
a Latin one, a fullwidth bar from ours, or a curly quote from the one that ends a quotation.  So
what a text shows keeps letters, marks and digits of one script a word, and spells out the rest;
and two names are taken for one if nothing but such characters tells them apart.

Few texts need this module: it is imported for a character that is not ASCII, and to check the name
of an agent.
"""

from __future__ import annotations

import re
from unicodedata import category, name, normalize

from interlock.core.validate import CONFUSED, RESERVED, UNSEEN

_ALIKE = {
    "a": "аɑα", "b": "Ьвʙ", "c": "сϲᴄ", "d": "ԁ", "e": "еҽε", "g": "ɡց", "h": "һհнʜ", "i": "іɩιı",
    "j": "јϳ", "k": "кκᴋ", "l": "ӏǀɭ", "m": "мᴍ", "n": "ոηɴ", "o": "оοօσᴏ", "p": "рρ", "q": "ԛզ",
    "r": "ʀ", "s": "ѕꜱʂ", "t": "тτᴛ", "u": "υսᴜ", "v": "ѵνᴠ", "w": "ԝωѡᴡ", "x": "хχ",
    "y": "уүγʏ", "z": "ᴢ", ":": "∶꞉ː˸׃",
}  # fmt: skip
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


def _spelled(sign: str, doubtful: bool) -> str:  # noqa: FBT001 - a fact about the character
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
    """Whether the name of an agent reads as Interlock, the system, the user, or a person.

    Case, look-alikes and punctuation make no difference.
    """
    plain = normalize("NFKC", agent).casefold().translate(_TWINS)
    letters = "".join([each for each in normalize("NFKD", plain) if category(each)[0] != "M"])
    words = [each.translate(CONFUSED) for each in re.findall(r"[^\W_]+", letters)]
    reserved = {each.translate(CONFUSED) for each in RESERVED}
    is_person = re.match(r"[\W_]*pers[o0]n[\W_]*:", letters) is not None
    return is_person or (bool(words) and reserved.issuperset(words))
