"""Markdown in answers in a real browser: what it becomes, and that nothing of an answer becomes more than that."""

import json
from typing import Any

import pytest
from contrast import CONTRAST
from fake_server import FakeServer, Reply
from talking import figures, say

Page = Any

# Shows texts one after the other in one place, as an answer that grows, and returns its HTML after each.
_SHOW = """async (texts) => {
  const { Growing } = await import("/static/markdown.js");
  const host = document.createElement("div");
  const growing = new Growing(host);
  return texts.map((text) => {
    growing.show(text);
    return host.innerHTML;
  });
}"""


def shown(page: Page, text: str) -> str:
    return str(page.evaluate(_SHOW, [text])[0])


@pytest.fixture
def there(page: Page, server: FakeServer) -> Page:
    page.goto(server.url)
    return page


CASES = [
    ("plain", "<p>plain</p>"),
    ("one\ntwo", "<p>one<br>two</p>"),
    ("# A\n\n#### B", "<h3>A</h3><h6>B</h6>"),
    ("title\n---", "<p>title</p><hr>"),  # a heading would come and go while the line is written
    ("**a** *b* ~~c~~ `d<e>`", "<p><strong>a</strong> <em>b</em> <s>c</s> <code>d&lt;e&gt;</code></p>"),
    ("- a\n- b\n  1. c", "<ul><li>a</li><li>b<ol><li>c</li></ol></li></ul>"),
    ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
    ("> a\n\nb", "<blockquote><p>a</p></blockquote><p>b</p>"),
    (
        "|a|b|\n|-|-:|\n|1|2|",
        '<div class="table" tabindex="0"><table><thead><tr><th>a</th><th class="number">b</th></tr></thead>'
        '<tbody><tr><td>1</td><td class="number">2</td></tr></tbody></table></div>',
    ),
    (
        "[a](https://x.org/?q=1&r)",
        '<p><a href="https://x.org/?q=1&amp;r" target="_blank" rel="noopener noreferrer">a</a></p>',
    ),
    (
        "see https://x.org.",
        '<p>see <a href="https://x.org" target="_blank" rel="noopener noreferrer">https://x.org</a>.</p>',
    ),
    ("<mailto:a@b.org>", None),
    ("[a](/here) [b](javascript:alert(1))", "<p>[a](/here) [b](javascript:alert(1))</p>"),
    ("![cat](https://x.org/c.png)", None),
    ("$a_1 * b_2 * c$ and *d*", '<p><span class="maths">$a_1 * b_2 * c$</span> and <em>d</em></p>'),
    (r"\(x_1\) \[y_1\]", r'<p><span class="maths">\(x_1\)</span> <span class="maths">\[y_1\]</span></p>'),
    ("$$\na\n- b_1\n$$\n\nc", '<div class="maths">$$\na\n- b_1\n$$</div><p>c</p>'),
    ("\\[\na_1", '<div class="maths">\\[\na_1</div>'),  # not ended yet
    ("it costs $5, or *$10*", "<p>it costs $5, or <em>$10</em></p>"),
    ("a &lt; b &amp;", "<p>a &lt; b &amp;</p>"),
]


@pytest.mark.parametrize(("text", "html"), [case for case in CASES if case[1]], ids=lambda case: case[:20])
def test_what_markdown_becomes(there: Page, text: str, html: str) -> None:
    assert shown(there, text) == html


def test_links_lead_only_where_they_may(there: Page) -> None:
    assert 'href="mailto:a@b.org"' in shown(there, "<mailto:a@b.org>")
    picture = shown(there, "![cat](https://x.org/c.png)")
    assert "<img" not in picture and 'href="https://x.org/c.png"' in picture and ">cat</a>" in picture
    for url in ("javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\tscript:x", "data:text/html,x", "vbscript:x",
                "file:///etc/passwd", "blob:x", "//x.org", "ftp://x.org", "&#106;avascript:alert(1)"):  # fmt: skip
        for text in (f"[a]({url})", f"[a](<{url}>)", f"<{url}>", f"[a]\n\n[a]: {url}", f"![a]({url})", url):
            assert "href" not in shown(there, text), text


def test_code_has_its_language_colours_and_a_copy(there: Page, server: FakeServer) -> None:
    code = 'def f(x):\n    return "<b>"  # 1 & 2\n'
    server.replies.append(Reply(("Look:\n```py", "thon\n" + code, "```\nand\n\n    indented\n")))
    say(there, "hello")
    figures(there, "first after")
    block = there.locator(".code").first
    assert block.locator(".code-head span").inner_text() == "python"
    assert block.locator("pre").text_content() == code.rstrip("\n")
    assert block.locator(".hljs-keyword").all_inner_texts() == ["def", "return"]
    assert block.locator(".hljs-comment").inner_text() == "# 1 & 2"
    there.context.grant_permissions(["clipboard-read", "clipboard-write"])
    block.get_by_role("button", name="Copy").press("Enter")  # as the keyboard does
    block.get_by_role("button", name="Copied").wait_for()
    assert there.evaluate("navigator.clipboard.readText()") == code
    there.get_by_role("button", name="Copy answer").click()
    there.get_by_role("button", name="Copied").nth(1).wait_for()
    assert there.evaluate("navigator.clipboard.readText()").startswith("Look:\n```python\ndef")
    assert there.locator(".code").nth(1).locator("pre").text_content() == "indented"


ANSWER = """Start **bold `code
# H
1. one
   ```js
   let a = "x"; // c
   ```
2. two

|a|b|
|-|-|
|1|`2|

$$ x_1
\\[ y

[l]: https://x.org
[l] ![i](https://x.org) <b onclick=x> &lt; ***
```unknown
tail
"""


def test_it_can_be_cut_off_anywhere_and_ends_the_same(there: Page) -> None:
    pieces = [ANSWER[:end] for end in range(len(ANSWER) + 1)]
    grown = there.evaluate(_SHOW, pieces)
    assert grown[-1] == shown(there, ANSWER)
    for piece, html in zip(pieces[::7], grown[::7], strict=True):
        assert html == shown(there, piece), piece
    assert "<pre" in grown[ANSWER.index("let a") + 5]  # a fence that has not ended is code already


def test_blocks_that_are_done_keep_their_nodes(there: Page, server: FakeServer) -> None:
    server.replies.append(Reply(("first\n\n```\ncode\n```\n\n", "next ", "more"), held=True))
    say(there, "hello")
    server.let_go()
    there.locator(".answer pre").wait_for()
    there.evaluate("document.querySelector('.answer pre').marked = true")
    server.let_go(2)
    figures(there, "first after")
    assert there.evaluate("document.querySelector('.answer pre').marked") is True


ATTACKS = [
    "<script>window.hit = 1</script>", "<img src=x onerror='window.hit=1'>", "<svg onload=window.hit=1>",
    "<iframe srcdoc='<script>parent.hit=1</script>'>", "<a href='javascript:window.hit=1'>x</a>",
    "[x](javascript:window.hit=1)", "[x](https://a.b 'title\" onmouseover=\"window.hit=1')",
    "`<img src=x onerror=window.hit=1>`",
    "```<img src=x onerror=window.hit=1>\n</code></pre><script>hit=1</script>\n```",
    "```html\n<script>window.hit = 1</script>\n```", "|<script>|\n|-|\n|<img src=x onerror=window.hit=1>|",
    "$<img src=x onerror=window.hit=1>$", "$$\n<script>window.hit=1</script>\n$$", "# <style>*{display:none}</style>",
    "![\"><img src=x onerror=window.hit=1>](https://x.org)", "<https://x.org/\"onmouseover=\"window.hit=1>",
    "&lt;script&gt;window.hit=1&lt;/script&gt;", "1. <details open ontoggle=window.hit=1>",
    "<!--><script>hit=1</script>-->",
]  # fmt: skip
# Names of elements and attributes that are not what Markdown makes.
_FOREIGN = """() => {
  const blocks = "P H3 H4 H5 H6 UL OL LI BLOCKQUOTE TABLE THEAD TBODY TR TH TD PRE HR DIV";
  const tags = new Set(`${blocks} STRONG EM S A CODE BR SPAN BUTTON`.split(" "));
  const names = new Set(["class", "href", "rel", "target", "start", "tabindex", "type"]);
  return [...document.querySelectorAll(".answer .text *")].flatMap((e) => [
    ...(tags.has(e.tagName) ? [] : [e.tagName]),
    ...[...e.attributes].map((a) => a.name).filter((name) => !names.has(name)),
  ]);
}"""


def test_nothing_of_an_answer_becomes_markup(there: Page, server: FakeServer) -> None:
    for attack in [*ATTACKS, "\n\n".join(ATTACKS)]:
        server.replies.append(Reply((attack[:5], attack[5:])))
        say(there, "hello")
        figures(there, "first after")
        assert there.evaluate(_FOREIGN) == [], attack
        assert there.evaluate("window.hit === undefined"), attack
        there.get_by_role("button", name="New chat").click()


def test_the_policy_of_the_page_lets_no_script_make_markup_of_text(browser: Any, server: FakeServer) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(server.url)
        tried = "() => { try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; } }"
        assert page.evaluate(tried) == "TypeError"


def test_a_long_answer_stays_quick(there: Page) -> None:
    for text in ("word " * 20_000, "*a " * 5_000, "`" * 5_000, "[" * 5_000, "$a " * 5_000, "\\(" * 2_000, "> " * 500,
                 "- " * 500, "```python\n" + "x = '\n" * 5_000, "|a" * 2_000 + "\n" + "|-" * 2_000):  # fmt: skip
        took_ms = there.evaluate(
            "async (text) => { const { Growing } = await import('/static/markdown.js');"
            "const began = performance.now(); new Growing(document.createElement('div')).show(text);"
            "return performance.now() - began; }",
            text,
        )
        assert took_ms < 20_000, json.dumps(text[:20])  # none is quadratic in a way that stops a page


def test_long_words_tables_and_code_scroll_inside_and_can_be_read(page: Page, server: FakeServer) -> None:
    wide = "|" + "long head|" * 20 + "\n|" + "-|" * 20 + "\n|" + "1,234|" * 20
    code = "```python\n" + "def f(): return 'x' * 12345 # " + "word " * 60 + "\n```"
    server.replies.append(Reply((f"# Title\n\n{'x' * 300} `{'y' * 300}`\n\n{wide}\n\n{code}\n\n$${'z' * 300}$$",)))
    page.goto(server.url)
    say(page, "hello")
    figures(page, "first after")
    for width in (1400, 360):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        log = page.evaluate("(e) => e.scrollWidth - e.clientWidth", page.query_selector("#log"))
        assert log <= 0, width
        assert page.evaluate("(e) => e.scrollWidth > e.clientWidth", page.query_selector(".code pre"))
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for selector in (".hljs-keyword", ".hljs-string", ".hljs-number", ".hljs-comment", ".code-head span",
                             "button.copy", ".markdown th", ".markdown p code", ".maths"):  # fmt: skip
                assert page.evaluate(CONTRAST, selector) >= 4.5, (selector, scheme)
