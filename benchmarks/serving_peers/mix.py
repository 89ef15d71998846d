"""16 requests of mixed lengths, given at once: 2,184 tokens in, 1,349 out."""

MIX = (  # (tokens of the prompt, tokens to follow): 16-255 and 32-127, drawn once
    (220, 92),
    (168, 84),
    (138, 85),
    (80, 121),
    (89, 58),
    (25, 110),
    (34, 96),
    (19, 32),
    (58, 69),
    (211, 114),
    (171, 85),
    (235, 35),
    (136, 105),
    (161, 102),
    (248, 113),
    (191, 48),
)
