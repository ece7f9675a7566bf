"""Names that break careless writers, for every export to be tried with."""

from hypothesis import strategies as st

HOSTILE_NAMES = (
    'quote " and \\ backslash',
    "line\nbreak\r\ttab",
    "".join(chr(code) for code in range(32)) + "\x7f\x80\x9f",
    "lone \ud800 high and \udc80 low",
    "\\\ud800 \\u{d800} \\\\u{dfff}",
    "\u2028\u2029 \ufeff \U0001f600 é",
    "</script><b>&amp;",
    "[bold red]markup[/]",
    "; drop table spans; --",
    "ends with a backslash \\",
    "ü" * 50_000,
    " ",
)

hostile_text = st.one_of(st.sampled_from(HOSTILE_NAMES), st.text(st.characters(), max_size=30))
