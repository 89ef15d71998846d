"""Hold the characters by which byte-level vocabularies write bytes."""


def _byte_alphabet() -> dict[str, int]:
    """Return the byte for each character of a byte-level vocabulary.

    A printable byte is represented by its own character, the others by characters from U+0100 on.

    Source: Radford et al., 2019, section 2.2, as released with GPT-2.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()
